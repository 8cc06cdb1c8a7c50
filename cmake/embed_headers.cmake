# For cmake -P: writes a C++ source, OUTPUT, with each of the HEADERS as a string, under its path from ROOT.
set(text "#include \"jit/embedded_headers.h\"\n\nnamespace mgpu::compiled {\n\n")
set(list "")
set(all "")
set(number 0)
foreach(header ${HEADERS})
  file(READ ${ROOT}/${header} content)
  string(APPEND all "${header}\n${content}")
  string(APPEND text "static const char kHeader${number}[] = R\"mgpu(${content})mgpu\";\n")
  string(APPEND list "      {\"${header}\", kHeader${number}},\n")
  math(EXPR number "${number} + 1")
endforeach()
string(SHA256 digest "${all}")
string(APPEND text "\nconst std::vector<EmbeddedHeader>& embedded_headers() {\n"
                   "  static const std::vector<EmbeddedHeader> list = {\n${list}  };\n  return list;\n}\n\n"
                   "std::string embedded_headers_digest() { return \"${digest}\"; }\n\n}  // namespace mgpu::compiled\n")
file(WRITE ${OUTPUT} "${text}")
