// Finds the compiled program of an eager call by its arguments (core/eager.py).
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace mgpu {

namespace nb = nanobind;

// What JAX does without `jax_enable_x64` with NumPy arrays of a type; `WIDTHS` of core/eager.py has these numbers.
enum class Width { kept, signed_narrowed, unsigned_narrowed, converted };

// Whether all integers from `axis` on have the same value in the narrow type.
template <typename Wide, typename Narrow>
bool fit(const Py_buffer& array, const char* at, int axis = 0) {
  const auto fits = [](const char* item) {
    Wide value;
    std::memcpy(&value, item, sizeof(value));
    return value == static_cast<Wide>(static_cast<Narrow>(value));
  };
  if (axis == array.ndim) return fits(at);
  const Py_ssize_t n = array.shape[axis], stride = array.strides[axis];
  bool all = true;
  if (axis + 1 == array.ndim) {
    for (Py_ssize_t i = 0; i < n; ++i) all &= fits(at + i * stride);
  } else {
    for (Py_ssize_t i = 0; i < n && all; ++i) all = fit<Wide, Narrow>(array, at + i * stride, axis + 1);
  }
  return all;
}

// What core/eager.py gives for the calls of all functions. An option of JAX has a `value`.
struct EagerSettings {
  nb::object array, host_array;               // the types of arrays of JAX and of NumPy
  nb::object widths;                          // a `Width` by the dtype of an array of NumPy
  nb::object x64, disable_jit;                // options
  nb::object trace, no_trace, axes, no_axes;  // options, and their values outside of programs
};

// The calls of one public function.
class EagerCalls {
 public:
  // `program(*positional, **named)` runs calls whose arguments a program takes as they are. `other(positional, named,
  // key)` runs all others, and may put `(run, operands)` into `known` by the key, for later calls. If results are of a
  // type `named_tuple`, which may be None, `program` returns plain tuples.
  EagerCalls(nb::object program, nb::object other, nb::object known, const nb::tuple& are_settings, nb::object settings,
             nb::object named_tuple, const nb::tuple& common)
      : program_(std::move(program)),
        other_(std::move(other)),
        known_(std::move(known)),
        settings_(std::move(settings)),
        named_tuple_(std::move(named_tuple)),
        common_{common[0], common[1], common[2], common[3], common[4], common[5], common[6], common[7], common[8]} {
    for (const nb::handle is_setting : are_settings) are_settings_.push_back(nb::cast<bool>(is_setting));
  }

  nb::object run(const nb::tuple& positional, const nb::dict& named) const {
    const size_t n = positional.size();
    if (n > are_settings_.size() || n + named.size() > 64 || !is_eager()) {
      return other_(positional, named, nb::none());
    }
    Arguments arguments;
    for (size_t i = 0; i < n; ++i) arguments.add(kind_of(positional[i], are_settings_[i]));
    for (const auto [name, x] : named) arguments.add(kind_of(x, is_setting(name)));
    if (arguments.others) return other_(positional, named, nb::none());
    if (!arguments.hosts) return as_named(made(PyObject_Call(program_.ptr(), positional.ptr(), named.ptr())));
    if (flag(common_.disable_jit)) return other_(positional, named, nb::none());
    return run_of_host(positional, named, arguments.hosts);
  }

 private:
  enum class Kind { kept, host, other };

  struct Arguments {
    void add(Kind kind) {
      hosts |= uint64_t{kind == Kind::host} << n++;
      others |= kind == Kind::other;
    }
    uint64_t hosts = 0;  // a bit for each argument
    bool others = false;
    int n = 0;
  };

  static nb::object made(PyObject* x) {
    if (!x) nb::raise_python_error();
    return nb::steal(x);
  }
  nb::object as_named(nb::object result) const {
    if (named_tuple_.is_none()) return result;
    const nb::tuple fields = nb::make_tuple(std::move(result));
    return made(new_tuple_(reinterpret_cast<PyTypeObject*>(named_tuple_.ptr()), fields.ptr(), nullptr));
  }
  static nb::object interned(const char* name) { return made(PyUnicode_InternFromString(name)); }
  bool flag(const nb::object& option) const { return option.attr(value_).is(Py_True); }
  bool is_eager() const {
    return common_.trace.attr(value_).is(common_.no_trace) && common_.axes.attr(value_).is(common_.no_axes);
  }
  bool is_setting(nb::handle name) const { return PySet_Contains(settings_.ptr(), name.ptr()) == 1; }

  // Returns an item of a dictionary, or nothing.
  static nb::object item(const nb::object& dictionary, nb::handle key) {
    PyObject* const found = PyObject_GetItem(dictionary.ptr(), key.ptr());
    if (!found) PyErr_Clear();
    return nb::steal(found);
  }

  Kind kind_of(nb::handle x, bool is_setting) const {
    const nb::handle type = x.type();
    if (x.is_none() || (type.is(common_.array) && !is_setting)) return Kind::kept;
    const bool is_bool = type.is(&PyBool_Type), is_int = type.is(&PyLong_Type);
    if (is_setting) return is_bool || is_int || type.is(&PyUnicode_Type) ? Kind::kept : Kind::other;
    if (type.is(common_.host_array)) return is_kept(x) ? Kind::kept : Kind::host;
    if (is_bool || type.is(&PyFloat_Type)) return Kind::host;
    int is_long = 0;
    if (is_int) PyLong_AsLongLongAndOverflow(x.ptr(), &is_long);
    return is_int && !is_long ? Kind::host : Kind::other;
  }

  // Whether a program takes an array of NumPy as it is.
  bool is_kept(nb::handle x) const {
    const nb::object width = item(common_.widths, x.attr(dtype_));
    if (!width) return false;
    const auto kind = static_cast<Width>(PyLong_AsLong(width.ptr()));
    if (kind == Width::kept || flag(common_.x64)) return true;
    if (kind == Width::signed_narrowed) return fits<int64_t, int32_t>(x);
    return kind == Width::unsigned_narrowed && fits<uint64_t, uint32_t>(x);
  }

  template <typename Wide, typename Narrow>
  static bool fits(nb::handle x) {
    Py_buffer array;
    if (PyObject_GetBuffer(x.ptr(), &array, PyBUF_STRIDED_RO)) nb::raise_python_error();
    const bool all = fit<Wide, Narrow>(array, static_cast<const char*>(array.buf));
    PyBuffer_Release(&array);
    return all;
  }

  // Runs a call with values that the host converts, by the program for its combination of shapes, types and settings.
  nb::object run_of_host(const nb::tuple& positional, const nb::dict& named, uint64_t hosts) const {
    const size_t n = positional.size();
    nb::list key, leaves;
    key.append(n);
    key.append(common_.x64.attr(value_));
    for (size_t i = 0; i < n; ++i, hosts >>= 1) add(positional[i], are_settings_[i], hosts & 1, key, leaves);
    for (const auto [name, x] : named) {
      key.append(name);
      add(x, is_setting(name), hosts & 1, key, leaves);
      hosts >>= 1;
    }
    const nb::object found_by = made(PyList_AsTuple(key.ptr())), found = item(known_, found_by);
    if (!found) return other_(positional, named, found_by);
    const nb::object given = made(PyList_AsTuple(leaves.ptr()));
    nb::list operands;
    for (const nb::handle source : nb::borrow<nb::tuple>(found[1])) operands.append(operand(source, leaves, given));
    const nb::object all = made(PyList_AsTuple(operands.ptr()));
    return made(PyObject_Call(nb::object(found[0]).ptr(), all.ptr(), nullptr));
  }

  void add(nb::handle x, bool is_setting, bool of_host, nb::list& key, nb::list& leaves) const {
    const nb::handle type = x.type();
    const bool is_array = type.is(common_.array);
    if (is_setting || x.is_none()) {
      key.append(type);
      key.append(x);
      return;
    }
    leaves.append(x);
    key.append(of_host);
    if (is_array || type.is(common_.host_array)) {
      const nb::object shaped = is_array ? nb::object(x.attr(aval_)) : nb::borrow(x);
      key.append(shaped.attr(shape_));
      key.append(shaped.attr(dtype_));
    } else {
      key.append(type);
    }
  }

  // Returns an operand of a program: a leaf by its place, a number on the device, or what the host converts.
  static nb::object operand(nb::handle source, const nb::list& leaves, const nb::object& given) {
    if (PyLong_CheckExact(source.ptr())) return leaves[PyLong_AsSsize_t(source.ptr())];
    if (!PyTuple_CheckExact(source.ptr())) return source(given);
    const nb::object number = leaves[PyLong_AsSsize_t(nb::object(source[0]).ptr())];
    const bool is_number = PyFloat_Check(number.ptr()) || PyLong_Check(number.ptr());
    if (is_number && PyObject_IsTrue(number.ptr()) == 1) {
      if (nb::object known = item(source[1], number); known && !known.is_none()) return known;
    }
    return source[2](given);
  }

  nb::object program_, other_, known_;
  std::vector<uint8_t> are_settings_;
  nb::object settings_, named_tuple_;
  EagerSettings common_;
  newfunc new_tuple_ = reinterpret_cast<newfunc>(PyType_GetSlot(&PyTuple_Type, Py_tp_new));
  nb::object value_ = interned("value"), aval_ = interned("aval"), shape_ = interned("shape"),
             dtype_ = interned("dtype");
};

}  // namespace mgpu
