#include "jit/function_data.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>
#include <set>
#include <span>

#include "jit/registry.h"

namespace mgpu {

namespace {

using Layout = FunctionData::Layout;
using Words = std::span<const std::string_view>;

// The functions that the emitter writes are within these limits. Larger ones could take hours to compile.
constexpr size_t kMaxBytes = size_t{1} << 24;
constexpr size_t kMaxValues = 1 << 16;
constexpr size_t kMaxOperands = 1024;
constexpr size_t kMaxDepth = 64;
constexpr int64_t kMaxScalars = 128;
constexpr int64_t kMaxNumber = int64_t{1} << 40;  // the largest number, such as a stride

// ---- Words of the language

enum Domain {
  kBools = 1,
  kIntegers = 2,
  kFloats = 4,
  kWords = kBools | kIntegers,
  kNumbers = kIntegers | kFloats,
  kScalars = kWords | kFloats
};

struct Type {
  std::string_view name;
  DType dtype;
  Domain domain;
  const char* text;

  int width() const { return byte_width(dtype); }
};

constexpr Type kTypes[] = {
    {"bool", DType::boolean, kBools, "bool"},         {"i8", DType::s8, kIntegers, "int8_t"},
    {"i16", DType::s16, kIntegers, "int16_t"},        {"i32", DType::s32, kIntegers, "int32_t"},
    {"i64", DType::s64, kIntegers, "int64_t"},        {"u8", DType::u8, kIntegers, "uint8_t"},
    {"u16", DType::u16, kIntegers, "uint16_t"},       {"u32", DType::u32, kIntegers, "uint32_t"},
    {"u64", DType::u64, kIntegers, "uint64_t"},       {"f16", DType::f16, kFloats, "mgpu::Half"},
    {"bf16", DType::bf16, kFloats, "mgpu::BFloat16"}, {"f32", DType::f32, kFloats, "float"},
    {"f64", DType::f64, kFloats, "double"},
};

const Type& type_of(DType dtype) {
  return *std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Type& type) { return type.dtype == dtype; });
}

// A bool is stored as a byte, which may hold any value, while a C++ bool may not.
const char* stored_text(const Type& type) { return type.domain == kBools ? "uint8_t" : type.text; }
std::string loaded_text(const Type& type, std::string stored) {
  return type.domain == kBools ? "(" + stored + " != 0)" : stored;
}

// Functions of ffi/function/primitives.h whose operands have one type. They return that type, or a bool.
struct Operation {
  std::string_view names;
  size_t operands;
  int domain;
  bool gives_bool;
};

constexpr Operation kOperations[] = {
    {"max min", 2, kScalars, false},
    {"clamp", 3, kScalars, false},
    {"eq ne lt le gt ge above below", 2, kScalars, true},
    {"and_ or_ xor_", 2, kWords, false},
    {"not_", 1, kWords, false},
    {"add sub mul div rem", 2, kNumbers, false},
    {"neg abs sign square one_minus_square", 1, kNumbers, false},
    {"shift_left shift_right_logical shift_right_arithmetic mulhi", 2, kIntegers, false},
    {"population_count clz", 1, kIntegers, false},
    {"is_finite", 1, kFloats, true},
    {"atan2 nextafter", 2, kFloats, false},
    {"floor ceil round_even round_away exp exp2 expm1 log log1p log2 sin cos tan asin acos atan sinh cosh tanh asinh "
     "acosh atanh sqrt rsqrt cbrt erf erfc lgamma logistic",
     1, kFloats, false},
};

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

const Operation* operation_named(std::string_view name) {
  for (const Operation& operation : kOperations) {
    const auto names = split(operation.names, ' ');
    if (std::find(names.begin(), names.end(), name) != names.end()) return &operation;
  }
  return nullptr;
}

// ---- Layouts

int align_of(const Layout& layout) {
  int align = 4;  // threads exchange words of 4 bytes
  for (const auto& leaf : layout) align = maximum(align, byte_width(leaf.dtype));
  return align;
}

int64_t packed_bytes(const Layout& layout) {
  int64_t bytes = 0;
  for (const auto& leaf : layout) bytes += leaf.bytes();
  return bytes;
}

int64_t struct_bytes(const Layout& layout) {
  return ceil_div<int64_t>(packed_bytes(layout), align_of(layout)) * align_of(layout);
}

// The wide leaves come first, so that only the end is padded.
std::string struct_text(const Layout& layout, const char* name, int64_t largest) {
  std::vector<size_t> order(layout.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return byte_width(layout[a].dtype) > byte_width(layout[b].dtype); });
  std::string text = "struct alignas(" + std::to_string(align_of(layout)) + ") " + name + " {\n";
  for (const size_t leaf : order) {
    text += std::string("  ") + stored_text(type_of(layout[leaf].dtype)) + " f" + std::to_string(leaf) + "[" +
            std::to_string(layout[leaf].elements) + "];\n";
  }
  text += "  static constexpr int kLeaves = " + std::to_string(layout.size()) +
          ";\n  static constexpr int kLargest = " + std::to_string(largest) +
          ";\n  template <int kLeaf, typename Item>\n" + "  MGPU_HOST_DEVICE static auto& leaf(Item& item) {\n";
  for (size_t leaf = 0; leaf < layout.size(); ++leaf) {
    text += std::string(leaf ? "    else " : "    ") + "if constexpr (kLeaf == " + std::to_string(leaf) +
            ") return (item.f" + std::to_string(leaf) + ");\n";
  }
  return text + "  }\n};\nstatic_assert(sizeof(" + name + ") == " + std::to_string(struct_bytes(layout)) + ");\n";
}

// ---- Functions

// `arguments` has a letter for each item that the function takes.
struct Member {
  std::string_view name;
  std::string_view arguments;
  Layout FunctionData::* taken;
  Layout FunctionData::* given;  // null: a bool
  const char* signature;
};

constexpr Member kMembers[] = {
    {"combine", "ab", &FunctionData::item, &FunctionData::item, "Item combine(const Item& a, const Item& b"},
    {"dead", "", nullptr, &FunctionData::result, "Result dead("},
    {"neutral", "", nullptr, &FunctionData::item, "Item neutral("},
    {"nothing", "", nullptr, &FunctionData::result, "Result nothing("},
    {"load", "x", &FunctionData::element, &FunctionData::item, "Item load(const Element& x, int64_t position"},
    {"finish", "x", &FunctionData::item, &FunctionData::result, "Result finish(const Item& x"},
    {"less", "ab", &FunctionData::item, nullptr, "bool less(const Item& a, const Item& b"},
};

// A part of an expression that needs no parentheses.
struct Term {
  std::string text;
  const Type* type;
  int64_t places = 0;  // a result of nearest_place is below this number; 0 for other terms
};

struct Value {
  const Type* type;
  int64_t places;
  bool is_variable;
  bool is_known = true;  // until its block ends
};

struct Block {
  std::string_view kind;
  size_t first_value;
  int64_t cases = 0, opened = 0;
};

class Reader {
 public:
  Reader(std::string_view data, FunctionData& function) : function_(function) {
    if (data.size() > kMaxBytes) throw CallError("function: expected at most 16 MB");
    for (const std::string_view line : split(data, '\n')) {
      ++line_;
      words_ = split(line, ' ');
      expect(words_.size() <= kMaxOperands, "at most 1024 words");
      read_line();
    }
    expect(!member_, "give at the end of a function");
    expect_all_members();
  }

  std::string members() const { return text_; }
  bool has(std::string_view name) const { return marks_.count(name) > 0; }
  bool commutes() const { return commutes_; }
  bool branches() const { return branches_; }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    throw CallError("function: line " + std::to_string(line_) + ": expected " + expected);
  }
  void expect(bool holds, const char* expected) const {
    if (!holds) fail(expected);
  }

  // ---- Words

  int64_t number(std::string_view word) const {
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    const bool is_number = error == std::errc{} && end == word.data() + word.size();
    if (!is_number || value > uint64_t{kMaxNumber}) fail("a number up to 2^40");
    return static_cast<int64_t>(value);
  }
  const Type& type(std::string_view word) const {
    for (const Type& type : kTypes) {
      if (type.name == word) return type;
    }
    fail("a type");
  }

  Term constant(const Type& type, std::string_view digits) const {
    uint64_t bits = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits, 16);
    const bool fits = error == std::errc{} && end == digits.data() + digits.size() &&
                      (type.width() == 8 || bits >> (8 * type.width()) == 0);
    expect(fits && (type.domain != kBools || bits <= 1), "the bits of a constant of that type");
    if (type.domain == kBools) return {bits ? "true" : "false", &type};
    const std::string number = std::to_string(bits) + (type.width() == 8 ? "ull" : "u");
    if (type.domain == kIntegers) return {std::string(type.text) + "(" + number + ")", &type};
    const std::string word = "uint" + std::to_string(8 * type.width()) + "_t(" + number + ")";
    return {std::string("xla::bits<") + type.text + ">(" + word + ")", &type};
  }

  // aL.E: element E of leaf L of the item `a`.
  Term scalar(std::string_view word) const {
    const size_t dot = std::min(word.find('.'), word.size());
    const bool of_element = word.starts_with('e') && takes_element();
    expect(!word.empty() && (of_element || member_->arguments.find(word[0]) != std::string_view::npos) &&
               dot < word.size(),
           "an operand");
    const Layout& layout = of_element ? function_.element : function_.*member_->taken;
    const int64_t leaf = number(word.substr(1, dot - 1)), element = number(word.substr(dot + 1));
    expect(leaf < static_cast<int64_t>(layout.size()) && element < layout[leaf].elements, "a scalar of the item");
    const Type& type = type_of(layout[leaf].dtype);
    return {
        loaded_text(type, std::string(1, word[0]) + ".f" + std::to_string(leaf) + "[" + std::to_string(element) + "]"),
        &type};
  }

  // Whether the function being read is a `finish` that takes the element beside the item.
  bool takes_element() const { return member_->name == "finish" && function_.takes_next; }

  Value& value(std::string_view word) {
    expect(word.starts_with('v'), "a value");
    const int64_t place = number(word.substr(1));
    expect(place < static_cast<int64_t>(values_.size()) && values_[place].is_known, "a value that is known here");
    return values_[place];
  }

  Term operand(std::string_view word) {
    if (word.starts_with('v')) {
      const Value& found = value(word);
      return {"v" + std::to_string(&found - values_.data()), found.type, found.places};
    }
    if (const size_t colon = word.find(':'); colon != std::string_view::npos) {
      return constant(type(word.substr(0, colon)), word.substr(colon + 1));
    }
    if (word != "position") return scalar(word);
    expect(member_->name == "load" && position_, "an operand");
    return {std::string("static_cast<") + position_->text + ">(position)", position_};
  }
  Term operand(std::string_view word, int domain) {
    Term found = operand(word);
    expect(found.type->domain & domain, "an operand of another type");
    return found;
  }
  Term operand(std::string_view word, const Type& type) {
    Term found = operand(word);
    expect(found.type == &type, "an operand of that type");
    return found;
  }

  // ---- Lines

  void read_line() {
    const std::string_view first = words_[0];
    if (!member_) return first == "function" ? begin_member() : read_header();
    if (first == "give") return end_member();
    if (first == "case" || first == "end") return first == "case" ? begin_case() : end_block();
    expect(blocks_.empty() || blocks_.back().kind != "switch" || blocks_.back().opened > 0, "a case first in a switch");
    if (first == "set") return set();
    if (first == "while") return leave();
    if (first == "switch" || first == "loop" || first == "repeat") return begin_block();
    new_value();
  }

  void read_header() {
    const std::string_view first = words_[0];
    expect(text_.empty() && marks_.insert(first).second, "each header once, before all functions");
    if (first == "item") return read_layout(function_.item);
    if (first == "element") return read_layout(function_.element);
    if (first == "result") return read_layout(function_.result);
    if (first == "position") {
      expect(words_.size() == 2, "a type");
      position_ = &type(words_[1]);
      return expect(position_->domain == kIntegers, "a type of integers");
    }
    expect(first == "flags", "a header or a function");
    for (const std::string_view flag : Words(words_).subspan(1)) {
      bool* const to = flag == "commutes"    ? &commutes_
                       : flag == "reverse"   ? &function_.reverse
                       : flag == "exclusive" ? &function_.exclusive
                       : flag == "next"      ? &function_.takes_next
                                             : nullptr;
      expect(to && !*to, "known flags, each once");
      *to = true;
    }
  }

  void read_layout(Layout& layout) {
    expect(words_.size() >= 3 && words_.size() % 2 == 1 && words_.size() / 2 <= size_t{kMaxLeaves},
           "1 to 16 leaves, each a type and a number");
    int64_t scalars = 0;
    for (size_t i = 1; i < words_.size(); i += 2) {
      layout.push_back({type(words_[i]).dtype, number(words_[i + 1])});
      scalars += layout.back().elements;
      expect(layout.back().elements > 0 && scalars <= kMaxScalars, "1 to 128 scalars");
    }
  }

  void begin_member() {
    expect(words_.size() >= 2 && !function_.item.empty(), "the name of a function, after the item");
    for (const Member& member : kMembers) {
      if (member.name == words_[1]) member_ = &member;
    }
    expect(member_ && marks_.insert(member_->name).second, "a known function that was not defined before");
    if (function_.element.empty()) function_.element = function_.item;
    if (function_.result.empty()) function_.result = function_.item;
    bool is_called = false;
    for (const std::string_view mark : Words(words_).subspan(2)) {
      expect(mark == "called" || mark == "branches", "called or branches");
      (mark == "called" ? is_called : branches_) = true;
    }
    text_ += std::string("  ") + (is_called ? "MGPU_CALLED " : "MGPU_HOST_DEVICE ") + member_->signature +
             (takes_element() ? ", const Element& e) const {\n" : ") const {\n");
    values_.clear();
  }

  void end_member() {
    expect(blocks_.empty(), "the end of each block before give");
    const Words given = Words(words_).subspan(1);
    if (!member_->given) {
      expect(given.size() == 1, "one operand");
      line("return " + operand(given[0], type_of(DType::boolean)).text + ";");
    } else {
      line(std::string(member_->given == &FunctionData::item ? "Item" : "Result") + " result;");
      size_t next = 0;
      for (size_t leaf = 0; leaf < (function_.*member_->given).size(); ++leaf) {
        const auto& [dtype, elements] = (function_.*member_->given)[leaf];
        for (int64_t element = 0; element < elements; ++element) {
          expect(next < given.size(), "an operand for each scalar");
          line("result.f" + std::to_string(leaf) + "[" + std::to_string(element) +
               "] = " + operand(given[next++], type_of(dtype)).text + ";");
        }
      }
      expect(next == given.size(), "an operand for each scalar");
      line("return result;");
    }
    text_ += "  }\n";
    member_ = nullptr;
  }

  void expect_all_members() {
    if (has("less")) {
      const size_t others = marks_.size() - 2;
      function_.is_order = true;
      return expect(others == 0, "only an item and the function `less` in an order");
    }
    expect(has("combine") && has("dead"), "the functions `combine` and `dead`");
    expect(has("neutral") != has("nothing"), "one of the functions `neutral` and `nothing`");
    expect(has("element") == has("load") && has("position") == has("load"),
           "`element` and `position` with the function `load`");
    expect(has("result") == has("finish"), "`result` with the function `finish`");
    expect(!function_.takes_next || (has("neutral") && has("finish")),
           "the functions `neutral` and `finish` with the flag `next`");
    function_.has_neutral = has("neutral");
  }

  void line(const std::string& text) { text_ += std::string(4 + 2 * blocks_.size(), ' ') + text + "\n"; }

  void set() {
    expect(words_.size() == 3, "a variable and an operand");
    const Value& to = value(words_[1]);
    expect(to.is_variable, "a variable");
    line("v" + std::to_string(&to - values_.data()) + " = " + operand(words_[2], *to.type).text + ";");
  }

  // ---- Blocks

  void begin_block() {
    expect(blocks_.size() < kMaxDepth, "at most 64 nested blocks");
    Block block{words_[0], values_.size()};
    if (block.kind == "switch") {
      expect(words_.size() == 3, "an operand and a number");
      block.cases = number(words_[2]);
      expect(block.cases > 0, "at least one case");
      line("switch (xla::nearest_place(xla::convert<int32_t>(" + operand(words_[1], kWords).text + "), " +
           places_text(block.cases) + ")) {");
    } else if (block.kind == "loop") {
      expect(words_.size() == 1 && member_->given, "a loop without operands, outside of an order");
      line("for (;;) {");
      line("  xla::make_progress();");
    } else {
      expect(words_.size() == 2, "a number");
      const std::string step = "i" + std::to_string(blocks_.size());
      line("for (int64_t " + step + " = 0; " + step + " < " + places_text(number(words_[1])) + "; ++" + step + ") {");
    }
    blocks_.push_back(block);
  }

  void begin_case() {
    expect(words_.size() == 1 && !blocks_.empty(), "a case in a switch");
    Block& block = blocks_.back();
    expect(block.opened < block.cases, "as many cases as the switch announced");
    if (block.opened > 0) line("} break;");
    forget(block);
    ++block.opened;
    line(block.opened == block.cases ? "default: {" : "case " + std::to_string(block.opened - 1) + ": {");
  }

  void end_block() {
    expect(words_.size() == 1 && !blocks_.empty(), "the end of a block");
    const Block block = blocks_.back();
    expect(block.opened == block.cases, "as many cases as the switch announced");
    if (block.cases > 0) line("} break;");
    forget(block);
    blocks_.pop_back();
    line("}");
  }

  // Values computed in a block are not known after it.
  void forget(const Block& block) {
    for (size_t i = block.first_value; i < values_.size(); ++i) values_[i].is_known = false;
  }

  void leave() {
    expect(words_.size() == 2 && !blocks_.empty() && blocks_.back().kind == "loop",
           "a while with one operand in a loop");
    line("if (!" + operand(words_[1], type_of(DType::boolean)).text + ") break;");
  }

  // ---- Values

  static std::string places_text(int64_t number) { return "int64_t(" + std::to_string(number) + ")"; }

  void new_value() {
    expect(words_.size() >= 3 && words_[0].starts_with('v') && values_.size() < kMaxValues &&
               number(words_[0].substr(1)) == static_cast<int64_t>(values_.size()),
           "a known first word, or the next value with its type and operation");
    const Type& gives = type(words_[1]);
    const std::string_view name = words_[2];
    const Words given = Words(words_).subspan(3);
    const std::string variable = std::string(gives.text) + " v" + std::to_string(values_.size());
    if (name == "variable") {
      expect(given.empty(), "no operand");
      line(variable + "{};");  // a variable without a value might be anything each time it is read
      return values_.push_back({&gives, 0, true});
    }
    Value made{&gives, 0, false};
    line("const " + variable + " = " + expression(gives, name, given, made) + ";");
    values_.push_back(made);
  }

  std::string expression(const Type& gives, std::string_view name, Words given, Value& made) {
    if (name == "load") return load(gives, given);
    if (name == "nearest_place" || name == "is_place") {
      expect(given.size() == 2, "an operand and a number");
      const int64_t places = number(given[1]);
      const bool is_place = name == "is_place";
      expect(places > 0 && gives.dtype == (is_place ? DType::boolean : DType::s64),
             "at least one place, and the type i64 of nearest_place or bool of is_place");
      if (!is_place) made.places = places;
      return "xla::" + std::string(name) + "(" + operand(given[0], kIntegers).text + ", " + places_text(places) + ")";
    }
    if (name == "select") {
      expect(given.size() == 3, "three operands");
      return operand(given[0], type_of(DType::boolean)).text + " ? " + operand(given[1], gives).text + " : " +
             operand(given[2], gives).text;
    }
    if (name == "copy" || name == "convert" || name == "bits") return converted(gives, name, given);
    std::vector<Term> terms;
    if (name == "pick") {
      expect(given.size() >= 2, "an operand and choices");
      terms.push_back(operand(given[0], kWords));
      for (const std::string_view word : given.subspan(1)) terms.push_back(operand(word, gives));
    } else if (name == "pow") {
      expect(given.size() == 2 && gives.domain == kFloats, "two operands, of floats");
      terms = {operand(given[0], gives), operand(given[1], kNumbers)};
    } else {
      const Operation* const operation = operation_named(name);
      if (!operation) fail("an operation");
      expect(given.size() == operation->operands, "as many operands as the operation has");
      for (const std::string_view word : given) {
        terms.push_back(operand(word, operation->domain));
        expect(terms.back().type == terms.front().type, "operands of one type");
      }
      expect(&gives == (operation->gives_bool ? &type_of(DType::boolean) : terms.front().type),
             "the type that the operation gives");
    }
    return call(name, terms);
  }

  static std::string call(std::string_view name, const std::vector<Term>& terms) {
    std::string text = "xla::" + std::string(name) + "(";
    for (size_t i = 0; i < terms.size(); ++i) text += (i ? ", " : "") + terms[i].text;
    return text + ")";
  }

  std::string converted(const Type& gives, std::string_view name, Words given) {
    expect(given.size() == 1, "one operand");
    const Term x = operand(given[0]);
    if (name == "copy") {
      expect(x.type == &gives, "an operand of that type");
      return x.text;
    }
    expect(name == "convert" || (x.type->width() == gives.width() && ((x.type->domain | gives.domain) & kBools) == 0),
           "numbers of one width");
    return "xla::" + std::string(name) + "<" + gives.text + ">(" + x.text + ")";
  }

  std::string load(const Type& gives, Words given) {
    expect(given.size() >= 2 && given.size() % 2 == 0, "a captured array, an offset, places and strides");
    const int64_t array = number(given[0]);
    expect(array < kMaxCaptures, "one of 16 captured arrays");
    int64_t last = number(given[1]);
    std::string at = places_text(last);
    for (size_t i = 2; i < given.size(); i += 2) {
      const Term place = operand(given[i]);
      const int64_t stride = number(given[i + 1]);
      int64_t step = 0;
      expect(place.places > 0, "a result of nearest_place");
      expect(!__builtin_mul_overflow(place.places - 1, stride, &step) && !__builtin_add_overflow(last, step, &last) &&
                 last < INT64_MAX,
             "a position that 64 bits hold");
      at += " + " + place.text + " * " + places_text(stride);
    }
    auto& captures = function_.captures;
    if (captures.size() <= static_cast<size_t>(array)) captures.resize(array + 1);
    FunctionData::Capture& capture = captures[array];
    expect(!capture.is_read || capture.dtype == gives.dtype, "the type of the captured array");
    capture = {true, gives.dtype, maximum(capture.elements, last + 1)};
    return loaded_text(
        gives, std::string("captures.get<") + stored_text(gives) + ">(" + std::to_string(array) + ")[" + at + "]");
  }

  FunctionData& function_;
  size_t line_ = 0;
  std::vector<std::string_view> words_;
  std::set<std::string_view> marks_;  // headers and functions read so far
  const Type* position_ = nullptr;
  bool commutes_ = false, branches_ = false;
  const Member* member_ = nullptr;  // the function being read
  std::vector<Value> values_;
  std::vector<Block> blocks_;
  std::string text_;
};

}  // namespace

FunctionData::FunctionData(std::string_view data) {
  const Reader reader(data, *this);
  source = struct_text(item, "FunctionItem", struct_bytes(item));
  std::string names = "  using Item = FunctionItem;\n", flags;
  if (!is_order) {
    const auto add = [&](const char* name, const Layout& layout, bool is_own, int64_t largest) {
      const std::string own = std::string("Function") + name;
      if (is_own) source += struct_text(layout, own.c_str(), largest);
      names += std::string("  using ") + name + " = " + (is_own ? own : "FunctionItem") + ";\n";
    };
    add("Element", element, reader.has("element"), shape().size);
    add("Result", result, reader.has("result"), struct_bytes(result));
    const auto flag = [&](const char* name, bool on) {
      flags += std::string("  static constexpr bool k") + name + " = " + (on ? "true" : "false") + ";\n";
    };
    flag("HasNeutral", has_neutral);
    flag("Commutes", reader.commutes());
    flag("Branches", reader.branches());
    flag("Loads", reader.has("load"));
    flag("Finishes", reader.has("finish"));
    flag("Reverse", reverse);
    flag("Exclusive", exclusive);
    flag("TakesNext", takes_next);
    flags += "  MGPU_HOST_DEVICE static Item zero() { return Item{}; }\n";
  }
  source += "struct Function {\n" + names + "  mgpu::Captures captures;\n" + flags + reader.members() + "};\n";
}

ItemShape FunctionData::shape() const {
  int64_t widest = 0;
  for (const Leaf& leaf : element) widest = maximum(widest, leaf.bytes());
  return {static_cast<int>(maximum(struct_bytes(item), struct_bytes(element))), static_cast<int>(widest),
          static_cast<int>(packed_bytes(element))};
}

int64_t FunctionData::state_bytes() const {
  const int64_t some = align_of(item) == 8 ? 8 : 4;  // LiftedOperator::State
  return struct_bytes(item) + (has_neutral ? 0 : some);
}

void FunctionData::expect_leaves(const Call& call, int batch_rank, int64_t items, int64_t columns) const {
  call.expect(element.size() <= call.operands.size(), "expected an operand for each leaf of the function");
  for (size_t i = 0; i < element.size(); ++i) {
    const Array& leaf = call.operands[i];
    call.expect(leaf.dtype == element[i].dtype && leaf.rank() > batch_rank && leaf.extent(0, batch_rank + 1) == items &&
                    leaf.extent(batch_rank + 1, leaf.rank()) == element[i].elements * columns,
                "expected leaves of the function's types and shapes");
  }
}

void FunctionData::expect_results(const Call& call, size_t first, int64_t items) const {
  for (size_t i = 0; i < result.size(); ++i) {
    const Array& array = call.results[first + i];
    call.expect(array.dtype == result[i].dtype && array.size() == items * result[i].elements,
                "expected results of the function's types and shapes");
  }
}

void FunctionData::expect_captures(const Call& call, size_t first, size_t count) const {
  call.expect(captures.size() <= count && first + count <= call.operands.size(),
              "expected all arrays that the function captured");
  for (size_t i = 0; i < captures.size(); ++i) {
    if (!captures[i].is_read) continue;
    const Array& array = call.operands[first + i];
    call.expect(array.dtype == captures[i].dtype && array.size() >= captures[i].elements,
                "expected captured arrays of the types and sizes that the function reads");
  }
}

const FunctionData& function_of(std::string_view data) {
  static auto* const registry = new compiled::Registry<std::optional<FunctionData>>;
  const std::string key(data);
  return *registry->get(key, [&] { return std::optional<FunctionData>(key); });
}

}  // namespace mgpu
