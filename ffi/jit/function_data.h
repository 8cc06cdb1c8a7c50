// The function of a call, an operator or an order, which the call carries as data: lines of operations on scalars. As
// they come with a program, from any source, they are checked; the library generates C++ from them, and so decides all
// that a function can do.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "function/item.h"
#include "runtime/call.h"

namespace mgpu {

// The language, of which jax_mgpu/_src/functions/emit writes functions. A line has words, apart by one space each:
//
//   item TYPE COUNT ...        the leaves of what is combined or compared: for each its type and how many scalars it
//   has element TYPE COUNT ...     of what lies in memory, where `load` makes items of it result TYPE COUNT ...      of
//   results, where `finish` makes them of items position TYPE              of the positions that `load` takes flags
//   [commutes] [reverse] [exclusive] function NAME [called] [branches]      begins combine, dead, neutral or nothing,
//   load, finish; or less, of an order give OPERAND ...           ends it, with a scalar for each of the leaves of what
//   it gives
//
// and within a function:
//
//   vN TYPE OPERATION OPERAND ...          the N-th value of the function, from 0 on
//   set vN OPERAND             gives a `variable` its value
//   switch OPERAND COUNT       then COUNT times `case` and its lines, then `end`: by the nearest of these numbers
//   loop ... while OPERAND ... end         leaves the loop where the operand is false
//   repeat COUNT ... end
//
// TYPE is bool, i8 to i64, u8 to u64, f16, bf16, f32 or f64. An OPERAND is a value, vN; a scalar of an item, aL.E, of
// the first item, its leaf L and element E, bL.E of the second, xL.E of the only one; `position`; or a constant, TYPE:
// and its bits in hexadecimal. OPERATION is a name of ffi/function/primitives.h with as many operands as it takes; or
// variable, copy, convert, bits, select, pick, nearest_place and is_place (an operand and a number of places); or
// load CAPTURE OFFSET [PLACE STRIDE] ...: the element of a captured array at OFFSET and so many strides on for each
// place, which is what nearest_place gave.
struct FunctionData {
  struct Leaf {
    DType dtype;
    int64_t elements;

    int64_t bytes() const { return elements * byte_width(dtype); }
  };
  using Layout = std::vector<Leaf>;

  // The facts read about a captured array.
  struct Capture {
    bool is_read = false;
    DType dtype = DType::u8;
    int64_t elements = 0;  // that it must have
  };

  bool is_order = false;
  Layout item, element, result;
  bool reverse = false, exclusive = false;
  bool has_neutral = false;
  std::vector<Capture> captures;
  std::string source;  // C++, `struct Function`

  // Throws a CallError if the data are not of the language.
  explicit FunctionData(std::string_view data);

  // Sizes of an item and a state of the kernels.
  ItemShape shape() const;
  int64_t state_bytes() const;

  // Checks that a call's arrays are what the function reads and writes. The captured ones are `count` operands.
  void expect_leaves(const Call& call, int batch_rank, int64_t items) const;
  void expect_results(const Call& call, size_t first, int64_t items) const;
  void expect_captures(const Call& call, size_t first, size_t count) const;
};

// The function of these data, which is read once in a process.
const FunctionData& function_of(std::string_view data);

}  // namespace mgpu
