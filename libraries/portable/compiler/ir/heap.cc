// Calls of malloc and its like become calls of the runtime's, each with the type that the block is for. Arrays and
// structs, of the file and local, get a byte behind them, so that a pointer past the end leads to no other
// variable.
#include <llvm/IR/DIBuilder.h>
#include <llvm/IR/DebugInfo.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/Transforms/Utils/Local.h>

#include "libraries/portable/compiler/facts.h"
#include "libraries/portable/compiler/ir/instrument.h"
#include "libraries/portable/compiler/ir/tables.h"

namespace shadowib::portable::compiler {
namespace {

constexpr const char* kAllocators[] = {"malloc", "calloc", "realloc", "aligned_alloc", "strdup", "strndup"};

bool allocates(llvm::StringRef name) { return llvm::is_contained(kAllocators, name); }

// The type that clang noted at the call, or null.
const llvm::DIType* noted_type(const llvm::CallBase& call) {
  return llvm::dyn_cast_or_null<llvm::DIType>(call.getMetadata("heapallocsite"));
}

void replace(llvm::Module& module, Tables& tables, llvm::CallInst& call, llvm::StringRef name) {
  const bool text = name.startswith("str");
  auto* table = text ? tables.text_allocation(call) : tables.allocation(call, noted_type(call));
  std::vector<llvm::Value*> arguments(call.arg_begin(), call.arg_end());
  arguments.push_back(table);
  std::vector<llvm::Type*> types;
  for (llvm::Value* argument : arguments) types.push_back(argument->getType());
  auto callee = module.getOrInsertFunction(("shadowib_portable_" + name).str(),
                                           llvm::FunctionType::get(call.getType(), types, false));
  auto* function = llvm::cast<llvm::Function>(callee.getCallee()->stripPointerCasts());
  if (name != "realloc") function->addRetAttr(llvm::Attribute::NoAlias);
  auto* made = llvm::CallInst::Create(callee, arguments, "", &call);
  made->setDebugLoc(call.getDebugLoc());
  call.replaceAllUsesWith(made);
  call.eraseFromParent();
}

// The callee returns void*, and may be a wrapper of malloc: it is told the type.
void hint(llvm::Module& module, Tables& tables, llvm::CallInst& call) {
  llvm::IRBuilder<> builder(&call);
  auto* pointer = builder.getInt8PtrTy();
  auto callee = module.getOrInsertFunction("shadowib_portable_hint",
                                           llvm::FunctionType::get(builder.getVoidTy(), {pointer}, false));
  builder.CreateCall(callee, {tables.allocation(call, noted_type(call))});
  builder.SetInsertPoint(call.getNextNode());
  builder.CreateCall(callee, {llvm::ConstantPointerNull::get(pointer)});
}

}  // namespace

void type_heap(llvm::Module& module, Tables& tables) {
  for (const char* name : kAllocators) facts().no_site.insert(std::string("shadowib_portable_") + name);
  facts().no_site.insert("shadowib_portable_hint");
  facts().no_site.insert("shadowib_portable_free");
  std::vector<std::pair<llvm::CallInst*, std::string>> allocations, hints;
  for (llvm::Function& function : module) {
    for (llvm::Instruction& instruction : llvm::instructions(function)) {
      auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction);
      if (!call || call->isMustTailCall()) continue;
      auto* callee = call->getCalledFunction();
      const std::string name = callee ? callee->getName().str() : "";
      if (callee && callee->isDeclaration() && allocates(name)) {
        allocations.emplace_back(call, name);
      } else if (noted_type(*call) && !facts().no_site.count(name)) {
        hints.emplace_back(call, name);
      }
    }
  }
  for (auto& [call, name] : hints) hint(module, tables, *call);
  for (auto& [call, name] : allocations) replace(module, tables, *call, name);
  llvm::Function* released = module.getFunction("free");
  if (released && released->isDeclaration() && !released->use_empty()) {
    auto ours = module.getOrInsertFunction("shadowib_portable_free", released->getFunctionType());
    released->replaceAllUsesWith(
        llvm::ConstantExpr::getPointerCast(llvm::cast<llvm::Constant>(ours.getCallee()), released->getType()));
  }
}

void pad_globals(llvm::Module& module) {
  std::vector<llvm::GlobalVariable*> padded;
  for (llvm::GlobalVariable& global : module.globals()) {
    const bool whole = global.getValueType()->isArrayTy() || global.getValueType()->isStructTy();
    llvm::SmallVector<llvm::DIGlobalVariableExpression*, 1> sources;
    global.getDebugInfo(sources);
    if (whole && !sources.empty() && global.hasDefinitiveInitializer() && !global.hasSection() &&
        !global.hasComdat() && !global.isThreadLocal() && !global.getName().startswith("llvm."))
      padded.push_back(&global);
  }
  auto& context = module.getContext();
  auto* byte = llvm::ArrayType::get(llvm::Type::getInt8Ty(context), 1);
  for (llvm::GlobalVariable* old : padded) {
    auto* type = llvm::StructType::get(context, {old->getValueType(), byte});
    auto* value = llvm::ConstantStruct::get(type, {old->getInitializer(), llvm::ConstantAggregateZero::get(byte)});
    auto* fresh = new llvm::GlobalVariable(module, type, old->isConstant(), old->getLinkage(), value, "", old);
    fresh->takeName(old);
    fresh->copyAttributesFrom(old);
    fresh->setAlignment(old->getAlign() ? *old->getAlign() : module.getDataLayout().getPreferredAlign(old));
    fresh->copyMetadata(old, 0);
    fresh->setMetadata("shadowib.padded", llvm::MDNode::get(context, {}));
    old->replaceAllUsesWith(llvm::ConstantExpr::getPointerCast(fresh, old->getType()));
    old->eraseFromParent();
  }
}

void pad_locals(llvm::Function& function) {
  std::vector<llvm::AllocaInst*> arrays;
  for (llvm::Instruction& instruction : function.getEntryBlock()) {
    auto* place = llvm::dyn_cast<llvm::AllocaInst>(&instruction);
    if (place && (place->getAllocatedType()->isArrayTy() || place->getAllocatedType()->isStructTy()) &&
        !place->isArrayAllocation() && !llvm::FindDbgAddrUses(place).empty())
      arrays.push_back(place);
  }
  auto& context = function.getContext();
  llvm::DIBuilder debug(*function.getParent(), false);
  for (llvm::AllocaInst* old : arrays) {
    auto* type = llvm::StructType::get(
        context, {old->getAllocatedType(), llvm::ArrayType::get(llvm::Type::getInt8Ty(context), 1)});
    auto* fresh = new llvm::AllocaInst(type, 0, nullptr, old->getAlign(), "", old);
    fresh->takeName(old);
    llvm::replaceDbgDeclare(old, fresh, debug, llvm::DIExpression::ApplyOffset, 0);
    std::vector<llvm::Use*> uses;
    for (llvm::Use& use : old->uses()) uses.push_back(&use);
    for (llvm::Use* use : uses) {
      auto* user = llvm::cast<llvm::Instruction>(use->getUser());
      auto* phi = llvm::dyn_cast<llvm::PHINode>(user);
      llvm::Instruction* at = phi ? phi->getIncomingBlock(*use)->getTerminator() : user;
      use->set(new llvm::BitCastInst(fresh, old->getType(), "", at));
    }
    old->eraseFromParent();
  }
}

}  // namespace shadowib::portable::compiler
