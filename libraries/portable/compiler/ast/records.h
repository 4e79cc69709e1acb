// Tells the IR half which class of the source each struct of the IR is.
#pragma once

namespace clang {
class CompilerInstance;
}  // namespace clang

namespace shadowib::portable::compiler {

// For each class that expressions of the file make values of: a variable `shadowib.record.N`, a null pointer to it.
// The IR half reads the struct from the variable's type, the class from its debug information, and removes it.
// Names of structs do not tell: they leave out arguments of templates. Call at the end of the file, before code is
// made.
void mark_records(clang::CompilerInstance& compiler);

}  // namespace shadowib::portable::compiler
