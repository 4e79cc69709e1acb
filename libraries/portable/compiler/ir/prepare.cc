// Makes a function ready to be left and entered: each call that may reach a site ends its block, and each value that
// is used in another block has a place on the stack. Optimisation turns these places into registers again.
#include <llvm/Analysis/CaptureTracking.h>
#include <llvm/Analysis/ValueTracking.h>
#include <llvm/Demangle/Demangle.h>
#include <llvm/IR/CFG.h>
#include <llvm/IR/DiagnosticInfo.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>
#include <llvm/Transforms/Utils/Local.h>
#include <llvm/Transforms/Utils/PromoteMemToReg.h>

#include "libraries/portable/compiler/ir/instrument.h"

namespace shadowib::portable::compiler {
namespace {

class Refusal : public llvm::DiagnosticInfoUnsupported {
 public:
  using DiagnosticInfoUnsupported::DiagnosticInfoUnsupported;
};

bool touches_memory(const llvm::InlineAsm& code) {
  if (code.getAsmString().empty()) return false;
  return llvm::StringRef(code.getConstraintString()).contains("~{memory}") ||
         llvm::StringRef(code.getConstraintString()).contains("*m");
}

// What cannot be carried over a leave, whether or not it lives then.
const char* refused(const llvm::Instruction& instruction, const Reach& reach) {
  if (llvm::isa<llvm::IndirectBrInst>(instruction))
    return "the address of a label is taken; it means nothing after a restart";
  if (llvm::isa<llvm::CallBrInst>(instruction)) return "asm goto is not supported";
  if (auto* place = llvm::dyn_cast<llvm::AllocaInst>(&instruction)) {
    if (!place->isStaticAlloca())
      return "an array of variable length, or alloca, in a function that may reach a site; take it from malloc, or "
             "give it a constant size";
  }
  auto* call = llvm::dyn_cast<llvm::CallBase>(&instruction);
  if (!call) return nullptr;
  if (call->hasFnAttr(llvm::Attribute::ReturnsTwice))
    return "setjmp in a function that may reach a site; a jmp_buf means nothing after a restart";
  if (auto* code = llvm::dyn_cast<llvm::InlineAsm>(call->getCalledOperand())) {
    if (touches_memory(*code)) return "assembly that uses memory, in a function that may reach a site";
  }
  if (call->getIntrinsicID() == llvm::Intrinsic::vastart)
    return "va_start in a function that may reach a site; mark the functions that it calls SHADOWIB_NO_SITE, if they "
           "never reach one";
  if (call->getIntrinsicID() == llvm::Intrinsic::coro_begin)
    return "a coroutine that may reach a site; its variables are not on the stack";
  if (reach.may_reach(*call)) {
    if (call->isMustTailCall()) return "a musttail call may reach a site";
    for (unsigned i = 0; i < call->arg_size(); i++) {
      if (call->paramHasAttr(i, llvm::Attribute::SwiftError) || call->paramHasAttr(i, llvm::Attribute::InAlloca))
        return "this calling convention is not supported";
    }
  }
  return nullptr;
}

void drop_lifetimes(llvm::Function& function) {
  std::vector<llvm::Instruction*> markers;
  for (llvm::Instruction& instruction : llvm::instructions(function)) {
    if (instruction.isLifetimeStartOrEnd()) markers.push_back(&instruction);
  }
  for (llvm::Instruction* marker : markers) marker->eraseFromParent();
}

// Static allocas to the top of a block of their own. Returns the block behind it.
llvm::BasicBlock* split_entry(llvm::Function& function) {
  llvm::BasicBlock& entry = function.getEntryBlock();
  std::vector<llvm::AllocaInst*> places;
  for (llvm::Instruction& instruction : entry) {
    if (auto* place = llvm::dyn_cast<llvm::AllocaInst>(&instruction)) places.push_back(place);
  }
  for (auto place = places.rbegin(); place != places.rend(); ++place) (*place)->moveBefore(&entry.front());
  auto first = entry.begin();
  while (llvm::isa<llvm::AllocaInst>(*first)) ++first;
  return llvm::SplitBlock(&entry, &*first);
}

void demote_values(llvm::Function& function) {
  llvm::Instruction* at = function.getEntryBlock().getTerminator();
  std::vector<llvm::PHINode*> phis;
  for (llvm::Instruction& instruction : llvm::instructions(function)) {
    if (auto* phi = llvm::dyn_cast<llvm::PHINode>(&instruction)) phis.push_back(phi);
  }
  for (llvm::PHINode* phi : phis) llvm::DemotePHIToStack(phi, at);
  std::vector<llvm::Instruction*> values;
  for (llvm::BasicBlock& block : function) {
    for (llvm::Instruction& instruction : block) {
      if (llvm::isa<llvm::AllocaInst>(instruction)) continue;
      for (const llvm::User* user : instruction.users()) {
        if (llvm::cast<llvm::Instruction>(user)->getParent() != &block) {
          values.push_back(&instruction);
          break;
        }
      }
    }
  }
  for (llvm::Instruction* value : values) llvm::DemoteRegToStack(*value, false, at);
}

// Where the normal way of a call goes on.
llvm::Instruction* behind(llvm::CallBase& call) {
  auto* invoke = llvm::dyn_cast<llvm::InvokeInst>(&call);
  return invoke ? &*invoke->getNormalDest()->getFirstInsertionPt() : call.getNextNode();
}

// The normal way of each call that an exception may pass begins with a block of its own.
void own_ways(llvm::Function& function) {
  std::vector<llvm::InvokeInst*> invokes;
  for (llvm::Instruction& instruction : llvm::instructions(function)) {
    if (auto* invoke = llvm::dyn_cast<llvm::InvokeInst>(&instruction)) invokes.push_back(invoke);
  }
  for (llvm::InvokeInst* invoke : invokes) {
    llvm::BasicBlock* target = invoke->getNormalDest();
    auto* way = llvm::BasicBlock::Create(function.getContext(), "way", &function, target);
    llvm::BranchInst::Create(target, way)->setDebugLoc(invoke->getDebugLoc());
    target->replacePhiUsesWith(invoke->getParent(), way);
    invoke->setNormalDest(way);
  }
}

bool destroys(const llvm::CallBase& call) {
  const llvm::Function* callee = call.getCalledFunction();
  if (!callee || !(callee->getName().endswith("D1Ev") || callee->getName().endswith("D2Ev"))) return false;
  llvm::ItaniumPartialDemangler name;  // a method may be called `byD1`
  return !name.partialDemangle(callee->getName().str().c_str()) && name.isCtorOrDtor();
}

// Pointers of objects that have ended lead to memory that may have become something else.
void clear_destroyed(llvm::Function& function) {
  std::vector<std::pair<llvm::CallBase*, llvm::AllocaInst*>> ends;
  for (llvm::Instruction& instruction : llvm::instructions(function)) {
    auto* call = llvm::dyn_cast<llvm::CallBase>(&instruction);
    if (!call || call->arg_size() == 0 || !destroys(*call)) continue;
    if (auto* place = llvm::dyn_cast<llvm::AllocaInst>(call->getArgOperand(0)->stripPointerCasts()))
      ends.emplace_back(call, place);
  }
  const auto& layout = function.getParent()->getDataLayout();
  for (auto& [call, place] : ends) {
    llvm::Type* type = call->getArgOperand(0)->getType()->getPointerElementType();
    if (place->isArrayAllocation() || !type->isSized()) continue;
    llvm::IRBuilder<> builder(behind(*call));
    builder.CreateMemSet(place, builder.getInt8(0), layout.getTypeAllocSize(type).getFixedSize(), place->getAlign());
  }
}

// The same of arrays, whose elements end in a loop that clang makes.
void clear_destroyed_arrays(llvm::Function& function) {
  std::vector<std::pair<llvm::BasicBlock*, llvm::AllocaInst*>> ends;
  for (llvm::Instruction& instruction : llvm::instructions(function)) {
    auto* past = llvm::dyn_cast<llvm::PHINode>(&instruction);
    if (!past || !past->getName().startswith("arraydestroy.elementPast")) continue;
    for (unsigned i = 0; i < past->getNumIncomingValues(); i++) {
      auto* place = llvm::dyn_cast<llvm::AllocaInst>(
          const_cast<llvm::Value*>(llvm::getUnderlyingObject(past->getIncomingValue(i))));
      if (!place || place->isArrayAllocation()) continue;
      for (llvm::BasicBlock* last : llvm::predecessors(past->getParent()))
        for (llvm::BasicBlock* next : llvm::successors(last))
          if (next->getName().startswith("arraydestroy.done")) ends.emplace_back(next, place);
    }
  }
  const auto& layout = function.getParent()->getDataLayout();
  for (auto& [block, place] : ends) {
    llvm::IRBuilder<> builder(&*block->getFirstInsertionPt());
    const auto bytes = layout.getTypeAllocSize(place->getAllocatedType()).getFixedSize();
    builder.CreateMemSet(place, builder.getInt8(0), bytes, place->getAlign());
  }
}

// A struct that a call may make elsewhere than in a variable of this frame: the frame that is entered could not tell
// the callee where.
void own_result(llvm::CallBase& call, const Records& records) {
  for (unsigned i = 0; i < call.arg_size(); i++) {
    if (!call.paramHasAttr(i, llvm::Attribute::StructRet)) continue;
    llvm::Value* target = call.getArgOperand(i);
    if (llvm::isa<llvm::AllocaInst>(target->stripPointerCasts())) continue;
    llvm::Type* type = call.getParamAttr(i, llvm::Attribute::StructRet).getValueAsType();
    if (records.by_reference(type)) continue;
    const auto& layout = call.getModule()->getDataLayout();
    auto* room = new llvm::AllocaInst(type, 0, nullptr, layout.getPrefTypeAlign(type), "tmp.result",
                                      &call.getFunction()->getEntryBlock().front());
    llvm::IRBuilder<> builder(behind(call));
    builder.CreateMemCpy(target, call.getParamAlign(i), room, room->getAlign(),
                         layout.getTypeAllocSize(type).getFixedSize());
    call.setArgOperand(i, builder.CreateBitCast(room, target->getType()));
  }
}

// A parameter that is used behind a site keeps its value on the stack. Those in memory of the frame are objects
// themselves.
void demote_arguments(llvm::Function& function, const Records& records, llvm::BasicBlock* body) {
  for (llvm::Argument& argument : function.args()) {
    if (argument.hasByValAttr()) continue;
    if (argument.hasStructRetAttr() && !records.by_reference(argument.getParamStructRetType())) continue;
    bool beyond = false;
    for (const llvm::User* user : argument.users())
      beyond |= llvm::cast<llvm::Instruction>(user)->getParent() != body;
    if (!beyond) continue;
    auto* place = new llvm::AllocaInst(argument.getType(), 0, argument.getName() + ".kept",
                                       function.getEntryBlock().getTerminator());
    std::vector<llvm::Use*> uses;
    for (llvm::Use& use : argument.uses()) uses.push_back(&use);
    for (llvm::Use* use : uses) {
      auto* user = llvm::cast<llvm::Instruction>(use->getUser());
      use->set(new llvm::LoadInst(argument.getType(), place, argument.getName(), user));
    }
    new llvm::StoreInst(&argument, place, &*body->getFirstInsertionPt());
  }
}

void find_variables(FrameLayout& frame) {
  llvm::Function& function = *frame.function;
  const auto& layout = function.getParent()->getDataLayout();
  auto add = [&](llvm::Value* address, llvm::Type* type, bool promotable) {
    Variable variable;
    variable.address = address, variable.type = type, variable.promotable = promotable;
    variable.size = layout.getTypeAllocSize(type).getFixedSize();
    variable.registered =
        !promotable && (llvm::isa<llvm::Argument>(address) || llvm::PointerMayBeCaptured(address, true, true));
    frame.variables.push_back(variable);
  };
  for (llvm::Argument& argument : function.args()) {
    if (argument.hasByValAttr()) add(&argument, argument.getParamByValType(), false);
  }
  for (llvm::Instruction& instruction : function.getEntryBlock()) {
    auto* place = llvm::dyn_cast<llvm::AllocaInst>(&instruction);
    if (!place) continue;
    llvm::Type* type = place->getAllocatedType();
    if (place->isArrayAllocation())
      type = llvm::ArrayType::get(type, llvm::cast<llvm::ConstantInt>(place->getArraySize())->getZExtValue());
    add(place, type, !place->isArrayAllocation() && llvm::isAllocaPromotable(place));
  }
}

// No variable is ever read before it is written: what the program did not set is zero, and fits everywhere.
void zero_variables(FrameLayout& frame, llvm::BasicBlock* body) {
  llvm::IRBuilder<> builder(&*body->getFirstInsertionPt());
  builder.SetCurrentDebugLocation(llvm::DebugLoc());
  auto at_begin = live_at_begin(*frame.function, frame.variables, {body});
  for (unsigned i = 0; i < frame.variables.size(); i++) {
    Variable& variable = frame.variables[i];
    if (llvm::isa<llvm::Argument>(variable.address) || variable.size == 0) continue;
    if (!variable.promotable) {
      auto align = llvm::cast<llvm::AllocaInst>(variable.address)->getAlign();
      builder.CreateMemSet(variable.address, builder.getInt8(0), variable.size, align);
    } else if (at_begin[0].count(i)) {
      builder.CreateStore(llvm::Constant::getNullValue(variable.type), variable.address);
    }
  }
}

}  // namespace

void refuse(const llvm::Function& function, const llvm::Instruction* at, const std::string& text) {
  llvm::DebugLoc where = at ? at->getDebugLoc() : llvm::DebugLoc();
  if (!where && function.getSubprogram())
    where = llvm::DILocation::get(function.getContext(), function.getSubprogram()->getLine(), 0,
                                  function.getSubprogram());
  function.getContext().diagnose(Refusal(function, "shadowib: " + text, where));
}

bool prepare_frame(llvm::Function& function, const Reach& reach, const Records& records, FrameLayout& frame) {
  frame.function = &function;
  bool right = true;
  for (llvm::Instruction& instruction : llvm::instructions(function)) {
    if (const char* why = refused(instruction, reach)) {
      refuse(function, &instruction, why);
      right = false;
    }
  }
  if (!right) return false;
  llvm::removeUnreachableBlocks(function);
  drop_lifetimes(function);
  own_ways(function);
  localise_arguments(function, records);
  clear_destroyed(function);
  clear_destroyed_arrays(function);
  pad_locals(function);
  llvm::BasicBlock* body = split_entry(function);

  std::vector<llvm::CallBase*> calls;
  for (llvm::Instruction& instruction : llvm::instructions(function)) {
    auto* call = llvm::dyn_cast<llvm::CallBase>(&instruction);
    if (call && reach.may_reach(*call)) calls.push_back(call);
  }
  for (llvm::CallBase* call : calls) own_result(*call, records);
  for (llvm::CallBase* call : calls) {
    SiteCall site;
    site.call = call;
    auto* invoke = llvm::dyn_cast<llvm::InvokeInst>(call);
    site.last = invoke ? invoke->getNormalDest() : call->getParent();
    site.after = llvm::SplitBlock(site.last, invoke ? &*site.last->getFirstInsertionPt() : call->getNextNode());
    if (auto* plain = llvm::dyn_cast<llvm::CallInst>(call)) plain->setTailCallKind(llvm::CallInst::TCK_NoTail);
    frame.sites.push_back(site);
  }
  for (SiteCall& site : frame.sites) {
    if (!site.call->use_empty())
      site.result = llvm::DemoteRegToStack(*site.call, false, function.getEntryBlock().getTerminator());
  }
  demote_values(function);
  demote_arguments(function, records, body);
  for (SiteCall& site : frame.sites) {
    llvm::Value* called = site.call->getCalledOperand();
    if (llvm::isa<llvm::Constant>(called)) continue;
    site.callee = new llvm::AllocaInst(called->getType(), 0, "called", function.getEntryBlock().getTerminator());
    new llvm::StoreInst(called, site.callee, site.call);
  }
  find_variables(frame);
  Temporaries temporaries(function, frame.variables, records);
  for (unsigned i = 0; i < frame.variables.size(); i++) {
    if (temporaries.is_one(i)) frame.variables[i].registered = false;
  }

  std::vector<llvm::BasicBlock*> blocks;
  for (SiteCall& site : frame.sites) blocks.push_back(site.after);
  auto live = live_at_begin(function, frame.variables, blocks);
  auto live_temporaries = temporaries.live_behind(frame.sites);
  for (unsigned i = 0; i < frame.sites.size(); i++) {
    SiteCall& site = frame.sites[i];
    for (unsigned j = 0; j < frame.variables.size(); j++) {
      const Variable& variable = frame.variables[j];
      if (variable.size == 0 || variable.address == site.result) continue;
      if (temporaries.is_one(j) && !live_temporaries[i].count(j)) continue;
      if (live[i].count(j) || variable.address == site.callee) site.live.push_back(j);
    }
  }
  zero_variables(frame, body);
  return true;
}

}  // namespace shadowib::portable::compiler
