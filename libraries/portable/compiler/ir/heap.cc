// Calls of malloc and its like become calls of the runtime's, each with the type that the block is for. Arrays and
// structs, of the file and local, get a byte behind them, so that a pointer past the end leads to no other
// variable.
#include <llvm/IR/DIBuilder.h>
#include <llvm/IR/DebugInfo.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>
#include <llvm/Transforms/Utils/Local.h>

#include "libraries/portable/compiler/facts.h"
#include "libraries/portable/compiler/ir/instrument.h"
#include "libraries/portable/compiler/ir/tables.h"

namespace shadowib::portable::compiler {
namespace {

constexpr const char* kAllocators[] = {"malloc", "calloc", "realloc", "aligned_alloc", "strdup", "strndup"};

// Its result, converted to a pointer, stands for the type that the pointer leads to.
constexpr const char* kTypeName = "shadowib_portable_type";

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

// `new`: the name is that of operator new. The runtime gives null if it has no memory; then the original call throws.
bool makes_new(llvm::StringRef name) { return name.startswith("_Znw") || name.startswith("_Zna"); }

void replace_new(llvm::Module& module, Tables& tables, llvm::CallBase& call) {
  const bool aligned = call.arg_size() > 1 && call.getArgOperand(1)->getType()->isIntegerTy();
  llvm::IRBuilder<> builder(&call);
  llvm::Value* size = call.getArgOperand(0);
  llvm::Value* alignment = aligned ? call.getArgOperand(1) : llvm::ConstantInt::get(size->getType(), 16);
  llvm::Constant* table = tables.allocation(call, noted_type(call));
  auto callee = module.getOrInsertFunction(
      "shadowib_portable_aligned_alloc",
      llvm::FunctionType::get(call.getType(), {size->getType(), size->getType(), table->getType()}, false));
  auto* made = builder.CreateCall(callee, {alignment, size, table});
  made->addFnAttr(llvm::Attribute::NoUnwind);
  auto* none = builder.CreateIsNull(made);
  llvm::BasicBlock* before = call.getParent();
  llvm::BasicBlock *slow = nullptr, *on = nullptr;
  if (auto* invoke = llvm::dyn_cast<llvm::InvokeInst>(&call)) {
    slow = llvm::SplitBlock(before, invoke);
    llvm::BasicBlock* target = invoke->getNormalDest();
    on = llvm::BasicBlock::Create(module.getContext(), "new", call.getFunction(), target);
    llvm::BranchInst::Create(target, on);
    target->replacePhiUsesWith(slow, on);
    invoke->setNormalDest(on);
  } else {
    slow = llvm::SplitBlock(before, &call);
    on = llvm::SplitBlock(slow, call.getNextNode());
  }
  before->getTerminator()->eraseFromParent();
  llvm::BranchInst::Create(slow, on, none, before)
      ->setMetadata(llvm::LLVMContext::MD_prof,
                    llvm::MDBuilder(module.getContext()).createBranchWeights(1, 1U << 20));
  auto* either = llvm::PHINode::Create(call.getType(), 2, "", &on->front());
  call.replaceAllUsesWith(either);
  either->addIncoming(made, before);
  either->addIncoming(&call, slow);
}

void replace_delete(llvm::Module& module, llvm::CallBase& call) {
  llvm::IRBuilder<> builder(&call);
  auto callee = module.getOrInsertFunction(
      "shadowib_portable_free", llvm::FunctionType::get(builder.getVoidTy(), {builder.getInt8PtrTy()}, false));
  builder.CreateCall(callee, {call.getArgOperand(0)})->addFnAttr(llvm::Attribute::NoUnwind);
  if (auto* invoke = llvm::dyn_cast<llvm::InvokeInst>(&call)) {
    builder.CreateBr(invoke->getNormalDest());
    invoke->getUnwindDest()->removePredecessor(invoke->getParent());
  }
  call.eraseFromParent();
}

void type_new(llvm::Module& module, Tables& tables) {
  std::vector<llvm::CallBase*> made, ended;
  for (llvm::Function& function : module) {
    for (llvm::Instruction& instruction : llvm::instructions(function)) {
      auto* call = llvm::dyn_cast<llvm::CallBase>(&instruction);
      const llvm::Function* callee = call ? call->getCalledFunction() : nullptr;
      if (!callee || !callee->isDeclaration()) continue;
      if (makes_new(callee->getName())) made.push_back(call);
      if (callee->getName().startswith("_ZdlPv") || callee->getName().startswith("_ZdaPv")) ended.push_back(call);
    }
  }
  for (llvm::CallBase* call : made) replace_new(module, tables, *call);
  for (llvm::CallBase* call : ended) replace_delete(module, *call);
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

void type_of_pointer(Tables& tables, llvm::CallInst& call) {
  const llvm::DIType* noted = noted_type(call);
  llvm::Constant* type =
      noted ? tables.type(noted) : llvm::ConstantPointerNull::get(llvm::cast<llvm::PointerType>(call.getType()));
  call.replaceAllUsesWith(llvm::ConstantExpr::getPointerCast(type, call.getType()));
  call.eraseFromParent();
}

}  // namespace

void type_heap(llvm::Module& module, Tables& tables) {
  for (const char* name : kAllocators) facts().no_site.insert(std::string("shadowib_portable_") + name);
  facts().no_site.insert("shadowib_portable_hint");
  facts().no_site.insert("shadowib_portable_free");
  std::vector<std::pair<llvm::CallInst*, std::string>> allocations, hints;
  std::vector<llvm::CallInst*> types;
  for (llvm::Function& function : module) {
    for (llvm::Instruction& instruction : llvm::instructions(function)) {
      auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction);
      if (!call || call->isMustTailCall()) continue;
      auto* callee = call->getCalledFunction();
      const std::string name = callee ? callee->getName().str() : "";
      if (makes_new(name)) continue;
      if (name == kTypeName) {
        types.push_back(call);
      } else if (callee && callee->isDeclaration() && allocates(name)) {
        allocations.emplace_back(call, name);
      } else if (noted_type(*call) && !facts().no_site.count(name)) {
        hints.emplace_back(call, name);
      }
    }
  }
  for (llvm::CallInst* call : types) type_of_pointer(tables, *call);
  for (auto& [call, name] : hints) hint(module, tables, *call);
  for (auto& [call, name] : allocations) replace(module, tables, *call, name);
  if (facts().cplusplus) type_new(module, tables);
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

// What a reference or a list of initial values leads to: it has no name, and pointers past its end.
static bool kept_alive(const llvm::AllocaInst& place) {
  return facts().cplusplus && place.getName().startswith("ref.tmp");
}

void pad_locals(llvm::Function& function) {
  std::vector<llvm::AllocaInst*> arrays;
  for (llvm::Instruction& instruction : function.getEntryBlock()) {
    auto* place = llvm::dyn_cast<llvm::AllocaInst>(&instruction);
    if (place && (place->getAllocatedType()->isArrayTy() || place->getAllocatedType()->isStructTy()) &&
        !place->isArrayAllocation() && (!llvm::FindDbgAddrUses(place).empty() || kept_alive(*place)))
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
