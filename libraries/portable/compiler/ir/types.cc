// Tables of types, from debug information: it alone knows signs, unions, bit-fields and names.
#include <llvm/ADT/Triple.h>
#include <llvm/IR/DebugInfo.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/Operator.h>

#include "libraries/portable/compiler/facts.h"
#include "libraries/portable/compiler/ir/sources.h"
#include "libraries/portable/compiler/ir/tables.h"
#include "libraries/portable/tables.h"

namespace shadowib::portable::compiler {
namespace {

unsigned float_format(std::uint64_t bits, llvm::StringRef name, const llvm::Module& module) {
  llvm::Triple target(module.getTargetTriple());
  if (bits <= 64 || name.contains("128")) return kFloatIeee;
  if (target.isX86()) return kFloatX87;
  if (target.isPPC()) return kFloatDoubleDouble;
  return kFloatIeee;
}

}  // namespace

// Typedefs and qualifiers say nothing about values.
const llvm::DIType* bare(const llvm::DIType* type) {
  while (auto* derived = llvm::dyn_cast_or_null<llvm::DIDerivedType>(type)) {
    switch (derived->getTag()) {
      case llvm::dwarf::DW_TAG_typedef:
      case llvm::dwarf::DW_TAG_const_type:
      case llvm::dwarf::DW_TAG_volatile_type:
      case llvm::dwarf::DW_TAG_restrict_type:
      case llvm::dwarf::DW_TAG_atomic_type:
        type = derived->getBaseType();
        continue;
      default:
        return type;
    }
  }
  return type;
}

unsigned basic_kind(unsigned encoding) {
  switch (encoding) {
    case llvm::dwarf::DW_ATE_signed:
      return kTypeSigned;
    case llvm::dwarf::DW_ATE_unsigned:
    case llvm::dwarf::DW_ATE_UTF:
      return kTypeUnsigned;
    case llvm::dwarf::DW_ATE_signed_char:
    case llvm::dwarf::DW_ATE_unsigned_char:
      return kTypeChar;
    case llvm::dwarf::DW_ATE_boolean:
      return kTypeBool;
    case llvm::dwarf::DW_ATE_float:
      return kTypeFloat;
    case llvm::dwarf::DW_ATE_complex_float:
      return kTypeComplex;
    default:
      return kTypeUnknown;
  }
}

llvm::Constant* Tables::type_fields(llvm::StringRef name, unsigned kind, unsigned format, std::uint64_t size,
                                    std::uint64_t count, llvm::Constant* element, llvm::Constant* members) {
  return llvm::ConstantStruct::get(
      type_type_, {text(name), small(kind), small(format), number(size), number(count), element, members});
}

llvm::Constant* Tables::type(const llvm::DIType* type) {
  type = bare(type);
  auto*& made = types_[type];
  if (made) return address(made);
  llvm::GlobalVariable* table = made = variable(type_type_, "shadowib.type");
  table->setInitializer(build_type(type, table));
  return address(table);
}

llvm::Constant* Tables::build_type(const llvm::DIType* type, llvm::GlobalVariable* table) {
  if (!type) return type_fields("void", kTypeVoid, 0, 0, 0, null(), null());
  std::uint64_t size = type->getSizeInBits() / 8;
  if (auto* basic = llvm::dyn_cast<llvm::DIBasicType>(type)) {
    unsigned kind = basic_kind(basic->getEncoding());
    unsigned format = kind == kTypeFloat ? float_format(type->getSizeInBits(), type->getName(), module_) : kFloatNone;
    if (kind == kTypeComplex) {
      auto* part = variable(type_type_, "shadowib.type");
      auto part_format = float_format(type->getSizeInBits() / 2, type->getName(), module_);
      part->setInitializer(type_fields(type->getName(), kTypeFloat, part_format, size / 2, 0, null(), null()));
      return type_fields(type->getName(), kind, 0, size, 2, address(part), null());
    }
    return type_fields(type->getName(), kind, format, size, 0, null(), null());
  }
  if (llvm::isa<llvm::DISubroutineType>(type))
    return type_fields("a function", kTypeFunction, 0, 0, 0, null(), null());
  if (auto* derived = llvm::dyn_cast<llvm::DIDerivedType>(type)) {
    if (derived->getTag() == llvm::dwarf::DW_TAG_ptr_to_member_type)
      return type_fields("a pointer to a member", kTypeUnknown, 0, size, 0, null(), null());
    if (!is_pointer(derived)) return type_fields(type->getName(), kTypeUnknown, 0, size, 0, null(), null());
    return type_fields("a pointer", kTypePointer, 0, size, 0, this->type(derived->getBaseType()), null());
  }
  (void)table;
  return composite(llvm::cast<llvm::DICompositeType>(type));
}

llvm::Constant* Tables::composite(const llvm::DICompositeType* type) {
  std::uint64_t size = type->getSizeInBits() / 8;
  switch (type->getTag()) {
    case llvm::dwarf::DW_TAG_array_type:
      return array_of(type);
    case llvm::dwarf::DW_TAG_enumeration_type: {
      auto* base = llvm::dyn_cast_or_null<llvm::DIBasicType>(bare(type->getBaseType()));
      unsigned kind = base && basic_kind(base->getEncoding()) == kTypeSigned ? kTypeSigned : kTypeUnsigned;
      if (size == 0) kind = kTypeOpaque;
      return type_fields(type->getName(), kind, 0, size, 0, null(), null());
    }
    default:
      break;
  }
  if (type->isForwardDecl()) return type_fields(type->getName(), kTypeOpaque, 0, 0, 0, null(), null());
  if (facts().cplusplus) return class_of(type);
  std::vector<llvm::Constant*> members;
  for (const llvm::DINode* element : type->getElements()) {
    auto* member = llvm::dyn_cast<llvm::DIDerivedType>(element);
    if (!member || member->getTag() != llvm::dwarf::DW_TAG_member || member->isStaticMember()) continue;
    members.push_back(llvm::ConstantStruct::get(
        member_type_, {text(member->getName()), this->type(member->getBaseType()), number(member->getOffsetInBits()),
                       number(member->isBitField() ? member->getSizeInBits() : 0)}));
  }
  unsigned kind = type->getTag() == llvm::dwarf::DW_TAG_union_type ? kTypeUnion : kTypeStruct;
  return type_fields(type->getName(), kind, 0, size, members.size(), null(), array(members, member_type_));
}

// A type of its own for each dimension; a vector is an array that keeps its kind.
llvm::Constant* Tables::array_of(const llvm::DICompositeType* type) {
  llvm::Constant* element = this->type(type->getBaseType());
  const auto* inner = bare(type->getBaseType());
  std::uint64_t total = type->getSizeInBits() / 8, each = inner ? inner->getSizeInBits() / 8 : 0;
  unsigned kind = type->isVector() ? kTypeVector : kTypeArray;
  auto dimensions = type->getElements();
  for (unsigned i = dimensions.size(); i-- > 0;) {
    std::uint64_t count = 0;
    if (auto* range = llvm::dyn_cast<llvm::DISubrange>(dimensions[i])) {
      if (auto* constant = range->getCount().dyn_cast<llvm::ConstantInt*>())
        count = constant->getSExtValue() < 0 ? 0 : constant->getZExtValue();
    }
    each = i == 0 && type->isVector() ? total : each * count;
    auto* fields = type_fields("", kind, 0, each, count, element, null());
    if (i == 0) return fields;
    auto* table = variable(type_type_, "shadowib.type");
    table->setInitializer(fields);
    element = address(table);
  }
  return type_fields("", kind, 0, total, 0, element, null());
}

void Tables::find_records() {
  llvm::DebugInfoFinder finder;
  finder.processModule(module_);
  for (const llvm::DIType* type : finder.types()) {
    const auto* record = llvm::dyn_cast<llvm::DICompositeType>(type);
    if (!record || record->isForwardDecl() || record->getName().empty()) continue;
    const char* prefix = record->getTag() == llvm::dwarf::DW_TAG_union_type ? "union." : "struct.";
    auto [found, fresh] = records_.try_emplace(prefix + record->getName().str(), type);
    if (!fresh && found->second != type) found->second = nullptr;
  }
}

// The struct or union of the source that clang made this type for, or null.
const llvm::DIType* Tables::source_type(llvm::Type* type) const {
  if (const llvm::DIType* made = class_records_.of(type)) return made;
  const auto* record = llvm::dyn_cast<llvm::StructType>(type);
  if (facts().cplusplus || !record || !record->hasName() || !record->isSized()) return nullptr;
  auto found = records_.find(record->getName().str());
  if (found == records_.end() || !found->second) return nullptr;
  const auto size = module_.getDataLayout().getTypeAllocSize(type).getFixedSize();
  return found->second->getSizeInBits() == size * 8 ? found->second : nullptr;
}

llvm::Constant* Tables::integer(unsigned kind, std::uint64_t size) {
  auto*& made = integers_[kind * 64 + static_cast<unsigned>(size)];
  if (!made) {
    made = variable(type_type_, "shadowib.type");
    made->setInitializer(type_fields("a whole number", kind, 0, size, 0, null(), null()));
  }
  return address(made);
}

// The type of the source, if it describes memory of this size.
llvm::Constant* Tables::fitting_type(const llvm::DIType* source, llvm::Type* type) {
  const llvm::DIType* shown = source ? bare(source) : source_type(type);
  const auto size = module_.getDataLayout().getTypeAllocSize(type).getFixedSize();
  if (shown && shown->getSizeInBits() / 8 <= size && (shown->getSizeInBits() > 0 || size == 0))
    return this->type(shown);
  const bool open = shown && shown->getTag() == llvm::dwarf::DW_TAG_array_type;  // of a size that only code knows
  return open && size == 0 ? this->type(shown) : plain_type(type);
}

llvm::Constant* Tables::plain_type(llvm::Type* type) {
  if (const llvm::DIType* source = source_type(type)) return this->type(source);
  auto*& made = plain_types_[type];
  if (made) return address(made);
  llvm::GlobalVariable* table = made = variable(type_type_, "shadowib.type");
  const auto& layout = module_.getDataLayout();
  std::uint64_t size = type->isSized() ? layout.getTypeAllocSize(type).getFixedSize() : 0;
  llvm::Constant* fields = nullptr;
  if (type->isIntegerTy()) {
    fields = type_fields("a whole number", size == 1 ? kTypeChar : kTypeBits, 0, size, 0, null(), null());
  } else if (type->isFloatingPointTy()) {
    unsigned format = type->isX86_FP80Ty() ? kFloatX87 : type->isPPC_FP128Ty() ? kFloatDoubleDouble : kFloatIeee;
    fields = type_fields("a float", kTypeFloat, format, size, 0, null(), null());
  } else if (type->isPointerTy()) {
    fields = type_fields("a pointer", kTypePointer, 0, size, 0, null(), null());
  } else if (auto* array_type = llvm::dyn_cast<llvm::ArrayType>(type)) {
    fields = type_fields("", kTypeArray, 0, size, array_type->getNumElements(),
                         plain_type(array_type->getElementType()), null());
  } else if (auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(type)) {
    fields =
        type_fields("", kTypeVector, 0, size, vector->getNumElements(), plain_type(vector->getElementType()), null());
  } else if (auto* record = llvm::dyn_cast<llvm::StructType>(type); record && record->isSized()) {
    std::vector<llvm::Constant*> members;
    for (unsigned i = 0; i < record->getNumElements(); i++) {
      members.push_back(llvm::ConstantStruct::get(
          member_type_, {text(std::to_string(i)), plain_type(record->getElementType(i)),
                         number(layout.getStructLayout(record)->getElementOffsetInBits(i)), number(0)}));
    }
    fields = type_fields(record->hasName() ? record->getName() : "", kTypeStruct, 0, size, members.size(), null(),
                         array(members, member_type_));
  } else {
    fields = type_fields("", kTypeUnknown, 0, size, 0, null(), null());
  }
  table->setInitializer(fields);
  return address(table);
}

}  // namespace shadowib::portable::compiler
