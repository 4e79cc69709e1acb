// Types of allocations, from where the result of malloc and its like is converted.
#pragma once

namespace clang {
class CompilerInstance;
class Decl;
}  // namespace clang

namespace shadowib::portable::compiler {

// Marks functions that allocate, and makes each implicit conversion of their result an explicit one. Clang then notes
// the type at the call (`heapallocsite`), which the IR half reads.
void type_allocations(clang::CompilerInstance& compiler, clang::Decl* declaration);

}  // namespace shadowib::portable::compiler
