// Types of debug information.
#pragma once

#include <llvm/BinaryFormat/Dwarf.h>
#include <llvm/IR/DebugInfoMetadata.h>

namespace shadowib::portable::compiler {

// Without typedefs and qualifiers, which say nothing about values.
const llvm::DIType* bare(const llvm::DIType* type);

// The TypeKind of a number: kTypeUnknown if it is none.
unsigned basic_kind(unsigned encoding);

// A pointer or a reference.
inline bool is_pointer(const llvm::DIDerivedType* type) {
  return type->getTag() == llvm::dwarf::DW_TAG_pointer_type || type->getTag() == llvm::dwarf::DW_TAG_reference_type ||
         type->getTag() == llvm::dwarf::DW_TAG_rvalue_reference_type;
}

}  // namespace shadowib::portable::compiler
