// What values without a name are: from what they were read, who returned them, and who takes their address. Debug
// information has types for names only.
#include <llvm/IR/DebugInfo.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/Operator.h>

#include "libraries/portable/compiler/facts.h"
#include "libraries/portable/compiler/ir/sources.h"
#include "libraries/portable/compiler/ir/tables.h"
#include "libraries/portable/tables.h"

namespace shadowib::portable::compiler {
namespace {

constexpr unsigned kDeep = 8;

const llvm::DISubprogram* source_of(const llvm::CallBase& call) {
  const auto* callee = llvm::dyn_cast<llvm::Function>(call.getCalledOperand()->stripPointerCasts());
  return callee ? callee->getSubprogram() : nullptr;
}

// What a pointer or reference leads to.
const llvm::DIType* target_of(const llvm::DIType* type) {
  const auto* derived = llvm::dyn_cast_or_null<llvm::DIDerivedType>(bare(type));
  return derived && is_pointer(derived) ? bare(derived->getBaseType()) : nullptr;
}

const llvm::DIType* element_of(const llvm::DIType* type) {
  const auto* array = llvm::dyn_cast_or_null<llvm::DICompositeType>(type);
  return array && array->getTag() == llvm::dwarf::DW_TAG_array_type ? bare(array->getBaseType()) : nullptr;
}

// The member that begins at this bit and is as large; of bases, too.
const llvm::DIType* member_at(const llvm::DIType* type, std::uint64_t bit, std::uint64_t bits) {
  const auto* record = llvm::dyn_cast_or_null<llvm::DICompositeType>(type);
  if (!record || record->getTag() == llvm::dwarf::DW_TAG_array_type) return nullptr;
  for (const llvm::DINode* node : record->getElements()) {
    const auto* member = llvm::dyn_cast<llvm::DIDerivedType>(node);
    if (!member || member->isStaticMember() || member->isBitField()) continue;
    const bool base = member->getTag() == llvm::dwarf::DW_TAG_inheritance;
    if ((!base && member->getTag() != llvm::dwarf::DW_TAG_member) || member->isVirtual()) continue;
    const llvm::DIType* of = bare(member->getBaseType());
    const std::uint64_t begin = member->getOffsetInBits();
    if (!of || bit < begin || bit - begin >= of->getSizeInBits()) continue;
    if (bit == begin && of->getSizeInBits() == bits) return of;
    if (const llvm::DIType* within = member_at(of, bit - begin, bits)) return within;
  }
  return nullptr;
}

// A variable's type before it got a byte behind it (pad_locals).
llvm::Type* without_padding(llvm::Type* type) {
  auto* record = llvm::dyn_cast<llvm::StructType>(type);
  const bool padded = record && record->isLiteral() && record->getNumElements() == 2 &&
                      record->getElementType(1)->isArrayTy() && record->getElementType(1)->getArrayNumElements() == 1;
  return padded ? record->getElementType(0) : type;
}

}  // namespace

const llvm::DIType* Tables::value_type(const llvm::Value* value, unsigned depth) const {
  if (depth > kDeep) return nullptr;
  if (const auto* load = llvm::dyn_cast<llvm::LoadInst>(value)) {
    const llvm::DIType* type = memory_type(load->getPointerOperand(), depth + 1);
    const auto size = module_.getDataLayout().getTypeStoreSizeInBits(load->getType()).getFixedSize();
    return type && type->getSizeInBits() == size ? type : nullptr;
  }
  if (const auto* call = llvm::dyn_cast<llvm::CallBase>(value)) {
    const auto* source = source_of(*call);
    if (source && source->getType()->getTypeArray().size() > 0) return bare(source->getType()->getTypeArray()[0]);
  }
  return nullptr;
}

const llvm::DIType* Tables::memory_type(const llvm::Value* address, unsigned depth) const {
  if (depth > kDeep) return nullptr;
  for (llvm::DbgVariableIntrinsic* use : llvm::FindDbgAddrUses(const_cast<llvm::Value*>(address)))
    if (use->getExpression()->getNumElements() == 0) return bare(use->getVariable()->getType());
  if (const auto* global = llvm::dyn_cast<llvm::GlobalVariable>(address)) {
    llvm::SmallVector<llvm::DIGlobalVariableExpression*, 1> sources;
    global->getDebugInfo(sources);
    return sources.empty() ? nullptr : bare(sources[0]->getVariable()->getType());
  }
  if (!facts().cplusplus) return nullptr;
  if (const auto* place = llvm::dyn_cast<llvm::AllocaInst>(address)) {
    // A value that the pass put on the stack, or a struct without a name.
    if (const llvm::DIType* record = source_type(place->getAllocatedType())) return record;
    const llvm::DIType* found = nullptr;
    for (const llvm::User* user : place->users()) {
      const auto* store = llvm::dyn_cast<llvm::StoreInst>(user);
      if (!store || store->getPointerOperand() != place || llvm::isa<llvm::Constant>(store->getValueOperand()))
        continue;
      const llvm::DIType* one = value_type(store->getValueOperand(), depth + 1);
      if (!one || (found && found != one)) return nullptr;
      found = one;
    }
    return found;
  }
  if (const auto* part = llvm::dyn_cast<llvm::GEPOperator>(address)) {
    const llvm::DIType* whole = memory_type(part->getPointerOperand(), depth + 1);
    if (!whole) whole = source_type(part->getSourceElementType());
    if (!whole || part->getNumIndices() == 1) return whole;
    const auto& layout = module_.getDataLayout();
    const auto bits = layout.getTypeAllocSizeInBits(part->getResultElementType()).getFixedSize();
    if (const llvm::DIType* element = element_of(whole)) return part->getNumIndices() == 2 ? element : nullptr;
    llvm::APInt offset(layout.getIndexTypeSizeInBits(part->getType()), 0);
    if (!part->accumulateConstantOffset(layout, offset)) return nullptr;
    return member_at(whole, offset.getZExtValue() * 8, bits);
  }
  return target_of(value_type(address, depth + 1));
}

// The type that the callee gives this parameter, if the architecture passes each as one.
const llvm::DIType* Tables::argument_type(const llvm::CallBase& call, unsigned argument) const {
  const auto* source = source_of(call);
  if (!source) return nullptr;
  const auto types = source->getType()->getTypeArray();
  const unsigned results = call.arg_size() > 0 && call.paramHasAttr(0, llvm::Attribute::StructRet) ? 1 : 0;
  if (types.size() != call.arg_size() - results + 1 || argument < results) return nullptr;
  return bare(types[argument - results + 1]);
}

// What those say who take the address of memory without a name.
const llvm::DIType* Tables::used_as(const llvm::Value* address, unsigned depth) const {
  if (depth > kDeep) return nullptr;
  for (const llvm::Use& use : address->uses()) {
    const llvm::User* user = use.getUser();
    const llvm::DIType* found = nullptr;
    if (const auto* call = llvm::dyn_cast<llvm::CallBase>(user)) {
      if (call->isArgOperand(&use)) found = target_of(argument_type(*call, call->getArgOperandNo(&use)));
    } else if (const auto* store = llvm::dyn_cast<llvm::StoreInst>(user)) {
      if (store->getValueOperand() == address) found = target_of(memory_type(store->getPointerOperand(), depth + 1));
    } else if (llvm::isa<llvm::GEPOperator>(user) || llvm::isa<llvm::BitCastOperator>(user)) {
      found = used_as(user, depth + 1);
    }
    if (llvm::isa_and_nonnull<llvm::DIBasicType>(found)) return found;
  }
  return nullptr;
}

// Whether a whole number has a sign, from the operations that made it: kTypeSigned, kTypeUnsigned, or kTypeBits.
unsigned Tables::sign_of(const llvm::Value* value, unsigned depth) const {
  if (const auto* basic = llvm::dyn_cast_or_null<llvm::DIBasicType>(value_type(value, 0))) {
    const unsigned kind = basic_kind(basic->getEncoding());
    return kind == kTypeSigned || kind == kTypeUnsigned ? kind : kTypeBits + 0U;
  }
  const auto* made = llvm::dyn_cast<llvm::Operator>(value);
  if (!made || depth > 8) return kTypeBits;
  // Constants take the other operand's sign. An operand of unknown sign may be unsigned, and makes the result so.
  auto either = [&](unsigned first) {
    const llvm::Value *left = made->getOperand(first), *right = made->getOperand(first + 1);
    if (llvm::isa<llvm::Constant>(left)) return sign_of(right, depth + 1);
    if (llvm::isa<llvm::Constant>(right)) return sign_of(left, depth + 1);
    const unsigned one = sign_of(left, depth + 1);
    return one == sign_of(right, depth + 1) ? one : kTypeBits + 0U;
  };
  switch (made->getOpcode()) {
    case llvm::Instruction::SExt:
    case llvm::Instruction::FPToSI:
    case llvm::Instruction::AShr:
    case llvm::Instruction::SDiv:
    case llvm::Instruction::SRem:
      return kTypeSigned;
    case llvm::Instruction::ZExt:
    case llvm::Instruction::FPToUI:
    case llvm::Instruction::LShr:
    case llvm::Instruction::UDiv:
    case llvm::Instruction::URem:
      return kTypeUnsigned;
    case llvm::Instruction::Add:
    case llvm::Instruction::Sub:
    case llvm::Instruction::Mul:
    case llvm::Instruction::Shl:
      if (llvm::cast<llvm::OverflowingBinaryOperator>(made)->hasNoSignedWrap()) return kTypeSigned;
      return either(0);
    case llvm::Instruction::And:
    case llvm::Instruction::Or:
    case llvm::Instruction::Xor:
      return either(0);
    case llvm::Instruction::Select:
      return either(1);
    default:
      return kTypeBits;
  }
}

llvm::Constant* Tables::variable_type(const Variable& variable, const llvm::DILocalVariable* source) {
  if (source) return fitting_type(source->getType(), variable.type);
  if (facts().cplusplus && llvm::isa<llvm::AllocaInst>(variable.address) && !variable.promotable) {
    llvm::Type* whole = without_padding(variable.type);
    llvm::Type* innermost = whole;
    std::uint64_t count = 1;
    for (; innermost->isArrayTy(); innermost = innermost->getArrayElementType())
      count *= innermost->getArrayNumElements();
    const llvm::DIType* type = innermost->isIntegerTy() ? used_as(variable.address, 0) : nullptr;
    const auto size = module_.getDataLayout().getTypeAllocSizeInBits(innermost).getFixedSize();
    if (type && type->getSizeInBits() == size) {
      if (!whole->isArrayTy()) return this->type(type);
      auto* table = this->variable(type_type_, "shadowib.type");
      table->setInitializer(type_fields("", kTypeArray, 0, count * size / 8, count, this->type(type), null()));
      return address(table);
    }
    if (!whole->isIntegerTy()) return fitting_type(nullptr, whole);
  }
  if (!variable.type->isIntegerTy() || variable.size == 1) return fitting_type(nullptr, variable.type);
  unsigned kind = 0;
  for (const llvm::User* user : variable.address->users()) {
    const auto* store = llvm::dyn_cast<llvm::StoreInst>(user);
    if (!store || store->getPointerOperand() != variable.address) continue;
    if (llvm::isa<llvm::Constant>(store->getValueOperand())) continue;
    const unsigned one = sign_of(store->getValueOperand(), 0);
    kind = kind == 0 || kind == one ? one : kTypeBits + 0U;
  }
  return integer(kind ? kind : kTypeBits + 0U, variable.size);
}

}  // namespace shadowib::portable::compiler
