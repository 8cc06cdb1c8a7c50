"""scripts/check_code.py counts the lines of Python and C++ functions."""

from scripts import check_code

PYTHON = '''def f(
    x,
):
    """Two
    lines."""
    # why

    def g():
        pass

    return g
'''

CPP = """
#define MACRO(x) \\
  void x() {     \\
  }
namespace a {
// A comment with a { brace.
template <typename T>
struct Pair {
  Pair(T a, T b) : a_{a}, b_(b) {
    use("{");

    use(b);
  }
  T first() const { return a_; }
  T a_{}, b_{};
};
template <typename Order>
__global__ void __launch_bounds__(kThreads<Order>)
    sort(const __grid_constant__ Problem problem) {
  const auto each = [&](int i) {
    return i;
  };
  if (each(1)) {
    run();
  }
}
}  // namespace a
"""


def test_functions_of_cpp_are_found_with_their_lines():
    assert list(check_code.cpp_functions(CPP)) == [("Pair", 4), ("first", 1), ("sort", 10)]


def test_functions_of_python_are_found_with_their_lines(tmp_path):
    module = tmp_path / "module.py"
    module.write_text(PYTHON)
    assert dict(check_code.python_functions(module)) == {"f": 6, "g": 2}


def test_no_function_is_too_long():
    assert not list(check_code.too_long())
