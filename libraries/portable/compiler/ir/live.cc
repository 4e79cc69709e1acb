// Which variables live at the begin of a block. Backwards over loads and stores of variables that can be registers;
// all others have addresses, and always live.
#include <llvm/ADT/BitVector.h>
#include <llvm/ADT/PostOrderIterator.h>
#include <llvm/IR/CFG.h>

#include "libraries/portable/compiler/ir/instrument.h"

namespace shadowib::portable::compiler {
namespace {

struct Block {
  llvm::BitVector read, written, live;  // read: before it is written in the block
};

}  // namespace

std::vector<std::set<unsigned>> live_at_begin(llvm::Function& function, const std::vector<Variable>& variables,
                                              const std::vector<llvm::BasicBlock*>& blocks) {
  llvm::DenseMap<const llvm::Value*, unsigned> index;
  for (unsigned i = 0; i < variables.size(); i++) {
    if (variables[i].promotable) index[variables[i].address] = i;
  }
  llvm::DenseMap<const llvm::BasicBlock*, Block> facts;
  unsigned count = variables.size();
  for (llvm::BasicBlock& block : function) {
    Block& own = facts[&block];
    own.read.resize(count), own.written.resize(count), own.live.resize(count);
    for (llvm::Instruction& instruction : block) {
      if (auto* load = llvm::dyn_cast<llvm::LoadInst>(&instruction)) {
        auto found = index.find(load->getPointerOperand());
        if (found != index.end() && !own.written.test(found->second)) own.read.set(found->second);
      } else if (auto* store = llvm::dyn_cast<llvm::StoreInst>(&instruction)) {
        auto found = index.find(store->getPointerOperand());
        if (found != index.end()) own.written.set(found->second);
      }
    }
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (llvm::BasicBlock* block : llvm::post_order(&function)) {
      llvm::BitVector live(count);
      for (llvm::BasicBlock* next : llvm::successors(block)) live |= facts[next].live;
      Block& own = facts[block];
      live.reset(own.written);
      live |= own.read;
      if (live != own.live) {
        own.live = live;
        changed = true;
      }
    }
  }
  std::vector<std::set<unsigned>> result;
  for (llvm::BasicBlock* block : blocks) {
    std::set<unsigned> live;
    for (unsigned i : facts[block].live.set_bits()) live.insert(i);
    for (unsigned i = 0; i < count; i++) {
      if (!variables[i].promotable) live.insert(i);
    }
    result.push_back(std::move(live));
  }
  return result;
}

}  // namespace shadowib::portable::compiler
