// What the ABI of one architecture adds: structs and long numbers that are passed by address, and the memory for
// them. Such memory is written at once and read at once, so it seldom lives at a site; where it does, it has a slot.
#include <llvm/IR/CFG.h>
#include <llvm/IR/DIBuilder.h>
#include <llvm/IR/DebugInfo.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/IntrinsicInst.h>

#include "libraries/portable/compiler/ir/instrument.h"

namespace shadowib::portable::compiler {
namespace {

bool is_declared(llvm::Value* address) {
  for (llvm::DbgVariableIntrinsic* use : llvm::FindDbgAddrUses(address)) {
    if (use->getExpression()->getNumElements() == 0) return true;
  }
  return false;
}

// A variable that is the result: its declaration goes by a pointer to the caller's memory, which it no longer is.
void declare_result(llvm::Argument& argument, llvm::AllocaInst* local) {
  llvm::SmallVector<llvm::StoreInst*, 1> kept;
  for (llvm::Instruction& instruction : llvm::instructions(*argument.getParent())) {
    auto* store = llvm::dyn_cast<llvm::StoreInst>(&instruction);
    if (store && store->getValueOperand()->stripPointerCasts() == &argument &&
        store->getPointerOperand()->getName().startswith("result.ptr"))
      kept.push_back(store);
  }
  for (llvm::StoreInst* store : kept) {
    llvm::Value* pointer = store->getPointerOperand();
    for (llvm::DbgVariableIntrinsic* use : llvm::FindDbgAddrUses(pointer)) {
      llvm::DIBuilder builder(*argument.getParent()->getParent(), false);
      builder.insertDeclare(local, use->getVariable(), builder.createExpression(), use->getDebugLoc(), use);
      use->eraseFromParent();
    }
    store->eraseFromParent();
    if (auto* place = llvm::dyn_cast<llvm::AllocaInst>(pointer); place && place->use_empty())
      place->eraseFromParent();
  }
}

llvm::AllocaInst* local_of(llvm::Argument& argument, llvm::Type* type) {
  llvm::BasicBlock& entry = argument.getParent()->getEntryBlock();
  auto* local = new llvm::AllocaInst(type, 0, nullptr, argument.getParamAlign().valueOrOne(), "", &entry.front());
  const auto& layout = argument.getParent()->getParent()->getDataLayout();
  local->setAlignment(std::max(local->getAlign(), layout.getABITypeAlign(type)));
  if (argument.hasStructRetAttr()) declare_result(argument, local);
  argument.replaceAllUsesWith(local);
  local->takeName(&argument);
  return local;
}

llvm::Instruction* behind_allocas(llvm::Function& function) {
  llvm::Instruction* at = &function.getEntryBlock().front();
  while (llvm::isa<llvm::AllocaInst>(at)) at = at->getNextNode();
  return at;
}

// Memory that code for the ABI writes as a whole.
bool written_whole(llvm::StringRef name) {
  return name.startswith("byval-temp") || name.startswith("indirect-arg-temp") || name.startswith("coerce") ||
         name.contains(".coerce");
}

// A result before it is returned is one of these, too: agg.result where the caller gives room for it, else retval.
bool between_steps(llvm::StringRef name) {
  return written_whole(name) || name.startswith("agg.tmp") || name.startswith("tmp") ||
         name.startswith("undef.agg.tmp") || name.startswith("agg.result") || name.startswith("retval");
}

// Part of a call's result of at least `size` bytes, whose parts are all written in a row. A frame with sites keeps
// the result in a place of its own behind the call.
bool of_a_result(const llvm::Value* value, const llvm::DataLayout& layout, std::uint64_t size) {
  if (!llvm::isa<llvm::ExtractValueInst>(value)) return false;
  while (const auto* part = llvm::dyn_cast<llvm::ExtractValueInst>(value)) value = part->getAggregateOperand();
  if (layout.getTypeAllocSize(value->getType()).getFixedSize() < size) return false;
  if (llvm::isa<llvm::CallBase>(value)) return true;
  const auto* load = llvm::dyn_cast<llvm::LoadInst>(value);
  if (!load || !llvm::isa<llvm::AllocaInst>(load->getPointerOperand())) return false;
  return llvm::all_of(load->getPointerOperand()->users(), [&](const llvm::User* user) {
    const auto* store = llvm::dyn_cast<llvm::StoreInst>(user);
    return llvm::isa<llvm::LoadInst>(user) || (store && llvm::isa<llvm::CallBase>(store->getValueOperand()));
  });
}

}  // namespace

void localise_arguments(llvm::Function& function, const Records& records) {
  const auto& layout = function.getParent()->getDataLayout();
  for (llvm::Argument& argument : function.args()) {
    if (!argument.getType()->isPointerTy() || argument.hasByValAttr()) continue;
    if (argument.hasStructRetAttr()) {
      llvm::Type* type = argument.getParamStructRetType();
      if (records.by_reference(type)) continue;
      llvm::AllocaInst* local = local_of(argument, type);
      for (llvm::BasicBlock& block : function) {
        auto* end = llvm::dyn_cast<llvm::ReturnInst>(block.getTerminator());
        if (!end) continue;
        llvm::IRBuilder<>(end).CreateMemCpy(&argument, argument.getParamAlign(), local, local->getAlign(),
                                            layout.getTypeAllocSize(type).getFixedSize());
      }
    } else if (is_declared(&argument)) {
      llvm::Type* type = argument.getType()->getPointerElementType();
      if (records.by_reference(type)) continue;
      llvm::AllocaInst* local = local_of(argument, type);
      llvm::IRBuilder<>(behind_allocas(function))
          .CreateMemCpy(local, local->getAlign(), &argument, argument.getParamAlign(),
                        layout.getTypeAllocSize(type).getFixedSize());
    }
  }
}

Temporaries::Temporaries(llvm::Function& function, const std::vector<Variable>& variables, const Records& records)
    : function_(function) {
  for (unsigned i = 0; i < variables.size(); i++) {
    auto* place = llvm::dyn_cast<llvm::AllocaInst>(variables[i].address);
    if (!place || variables[i].promotable || is_declared(place) || !between_steps(place->getName())) continue;
    if (records.by_reference(variables[i].type)) continue;
    uses_[i];
    if (!add_uses(i, place, variables[i].size, written_whole(place->getName()))) uses_.erase(i);
  }
}

void Temporaries::note(unsigned variable, llvm::Instruction* at, Use use) {
  Use& known = uses_[variable][at];
  if (known != Use::kRead) known = use;
}

// Returns false if the address goes where it is not followed.
bool Temporaries::add_uses(unsigned variable, llvm::Value* pointer, std::uint64_t size, bool lenient) {
  const auto& layout = function_.getParent()->getDataLayout();
  const bool begin = pointer->stripPointerCasts() == pointer->stripInBoundsConstantOffsets();
  for (llvm::Use& use : pointer->uses()) {
    auto* user = llvm::dyn_cast<llvm::Instruction>(use.getUser());
    if (!user) return false;
    if (auto* part = llvm::dyn_cast<llvm::GetElementPtrInst>(user)) {
      if (!part->hasAllConstantIndices() || !add_uses(variable, part, size, lenient)) return false;
    } else if (llvm::isa<llvm::BitCastInst>(user)) {
      if (!add_uses(variable, user, size, lenient)) return false;
    } else if (llvm::isa<llvm::LoadInst>(user)) {
      note(variable, user, Use::kRead);
    } else if (auto* store = llvm::dyn_cast<llvm::StoreInst>(user)) {
      if (use.getOperandNo() != llvm::StoreInst::getPointerOperandIndex()) return false;
      const bool whole = begin && layout.getTypeStoreSize(store->getValueOperand()->getType()).getFixedSize() >= size;
      note(variable, user,
           whole || lenient || of_a_result(store->getValueOperand(), layout, size) ? Use::kWrite : Use::kNone);
    } else if (auto* copy = llvm::dyn_cast<llvm::MemIntrinsic>(user)) {
      const auto* length = llvm::dyn_cast<llvm::ConstantInt>(copy->getLength());
      const bool target = use.getOperandNo() == 0;
      const bool whole = begin && length && length->getZExtValue() >= size;
      note(variable, user, !target ? Use::kRead : whole || lenient ? Use::kWrite : Use::kNone);
    } else if (auto* call = llvm::dyn_cast<llvm::CallBase>(user)) {
      if (!call->isArgOperand(&use)) return false;
      const bool result = call->paramHasAttr(call->getArgOperandNo(&use), llvm::Attribute::StructRet);
      note(variable, user, result ? Use::kWrite : Use::kRead);
    } else {
      return false;
    }
  }
  return true;
}

std::vector<std::set<unsigned>> Temporaries::live_behind(const std::vector<SiteCall>& sites) {
  std::vector<std::set<unsigned>> result(sites.size());
  for (auto& [variable, uses] : uses_) {
    llvm::DenseMap<llvm::BasicBlock*, bool> live_at_begin;
    auto before = [&, &known = uses](llvm::BasicBlock& block, llvm::Instruction* until) {
      bool live = false;
      for (llvm::BasicBlock* next : llvm::successors(&block)) live |= live_at_begin[next];
      for (auto at = block.rbegin(); at != block.rend() && &*at != until; ++at) {
        auto use = known.find(&*at);
        if (use != known.end() && use->second != Use::kNone) live = use->second == Use::kRead;
      }
      return live;
    };
    for (bool changed = true; changed;) {
      changed = false;
      for (llvm::BasicBlock& block : function_) {
        const bool live = before(block, nullptr);
        changed |= live != live_at_begin[&block];
        live_at_begin[&block] = live;
      }
    }
    for (unsigned i = 0; i < sites.size(); i++) {
      llvm::CallBase* call = sites[i].call;
      auto own = uses.find(call);
      const bool result_of_it = own != uses.end() && own->second == Use::kWrite;
      // What an exception's way reads is read behind no site.
      const bool live =
          llvm::isa<llvm::InvokeInst>(call) ? before(*sites[i].last, nullptr) : before(*call->getParent(), call);
      if (!result_of_it && live) result[i].insert(variable);
    }
  }
  return result;
}

}  // namespace shadowib::portable::compiler
