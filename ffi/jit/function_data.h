// The function of a call: an operator or an order, as lines of text. A program may come from any source, so the text is
// checked, and the library generates C++ from it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "function/item.h"
#include "runtime/call.h"

namespace mgpu {

// The language in which jax_mgpu/_src/functions/emit writes functions. The words of a line are one space apart:
//
//   item TYPE COUNT ...                    the leaves of items: the type of each, and how many scalars it has
//   element TYPE COUNT ...                 the leaves of elements in memory, if `load` makes items from them
//   result TYPE COUNT ...                  the leaves of results, if `finish` makes results from items
//   position TYPE                          the type of the positions that `load` takes
//   flags [commutes] [reverse] [exclusive] [next]
//                                          whether combine commutes; the direction and kind of a scan; and, for
//                                          rows, whether an element has a leaf of the next row (see below)
//   function NAME [called] [branches]      begins combine, dead, neutral|nothing, load, finish; or, of an order, less
//   give OPERAND ...                       ends it, with an operand for each scalar that it returns
//
// A `called` function is not inlined. If combine `branches`, kernels run it only on two items, never on a missing one.
// Within a function:
//
//   vN TYPE OPERATION OPERAND ...          the N-th value of the function, from 0 on
//   set vN OPERAND                         gives a `variable` its value
//   switch OPERAND COUNT                   runs the case of this number, or else the nearest case
//   case                                   begins each of the COUNT cases of a switch
//   loop                                   repeats its lines; not in an order
//   while OPERAND                          leaves the loop if the operand is false
//   repeat COUNT                           repeats its lines this many times
//   end                                    ends a switch, a loop or a repeat
//
// TYPE is bool, i8 to i64, u8 to u64, f16, bf16, f32 or f64. An OPERAND is one of: a value, vN; a scalar of an item,
// with its leaf L and element E, as aL.E of the first item, bL.E of the second, or xL.E of the only one; `position`; a
// constant, as TYPE:BITS in hexadecimal, such as f32:3f800000. OPERATION is the name of a function of
// ffi/function/primitives.h with as many operands as it takes; or variable, copy, convert, bits, select, pick,
// nearest_place and is_place (an operand and a number of places); or load CAPTURE OFFSET [PLACE STRIDE] ..., which
// reads the element of a captured array at OFFSET plus each PLACE times its STRIDE. A PLACE is a value that
// nearest_place gave.
//
// With `next`, which only scans of rows take, the last leaf of an element is that of the next row in the direction of
// the scan, and 0 after the last row. There, `finish` also takes the element of its row, with the scalars eL.E.
struct FunctionData {
  struct Leaf {
    DType dtype;
    int64_t elements;

    int64_t bytes() const { return elements * byte_width(dtype); }
  };
  using Layout = std::vector<Leaf>;

  struct Capture {
    bool is_read = false;
    DType dtype = DType::u8;
    int64_t elements = 0;  // the fewest elements that it must have
  };

  bool is_order = false;
  Layout item, element, result;
  bool reverse = false, exclusive = false, takes_next = false;
  bool has_neutral = false;
  std::vector<Capture> captures;
  std::string source;  // the C++ code of `struct Function`

  // Throws a CallError if the data are not in the language.
  explicit FunctionData(std::string_view data);

  ItemShape shape() const;
  int64_t state_bytes() const;

  // Check that a call's arrays fit the function. The captured arrays are `count` operands.
  void expect_leaves(const Call& call, int batch_rank, int64_t items, int64_t columns = 1) const;
  void expect_results(const Call& call, size_t first, int64_t items) const;
  void expect_captures(const Call& call, size_t first, size_t count) const;
};

// The data are read once in a process.
const FunctionData& function_of(std::string_view data);

}  // namespace mgpu
