"""What public functions check and convert before anything is computed: types, shapes, counts, values, rows."""
