"""What fits `ldreg` into other libraries: one module for each, of the library's name, imported where it is wanted."""
