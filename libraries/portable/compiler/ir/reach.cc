// Which functions and calls may reach a site.
//
// A call into another file may, unless it is libc's or marked SHADOWIB_NO_SITE. A call by pointer may.
#include <llvm/ADT/Triple.h>
#include <llvm/Analysis/TargetLibraryInfo.h>
#include <llvm/IR/InstIterator.h>

#include "libraries/portable/compiler/facts.h"
#include "libraries/portable/compiler/ir/instrument.h"

namespace shadowib::portable::compiler {

Reach::Reach(llvm::Module& module) {
  for (bool changed = true; changed;) {
    changed = false;
    for (llvm::Function& function : module) {
      if (function.isDeclaration() || reaching_.count(&function) || facts().no_site.count(function.getName().str()))
        continue;
      for (llvm::Instruction& instruction : llvm::instructions(function)) {
        auto* call = llvm::dyn_cast<llvm::CallBase>(&instruction);
        if (call && may_reach(*call)) {
          reaching_.insert(&function);
          changed = true;
          break;
        }
      }
    }
  }
}

bool Reach::may_reach(const llvm::CallBase& call) const {
  if (call.isInlineAsm()) return false;
  const auto* callee = llvm::dyn_cast<llvm::Function>(call.getCalledOperand()->stripPointerCastsAndAliases());
  return callee ? called_may_reach(*callee) : true;
}

bool Reach::called_may_reach(const llvm::Function& callee) const {
  if (callee.isIntrinsic()) return false;
  std::string name = callee.getName().str();
  if (facts().may_site.count(name)) return true;
  if (facts().no_site.count(name)) return false;
  if (!callee.isDeclaration() && !callee.isInterposable()) return reaching_.count(&callee) != 0;
  if (callee.isDeclaration()) {
    llvm::LibFunc known;
    llvm::TargetLibraryInfoImpl libc(llvm::Triple(callee.getParent()->getTargetTriple()));
    if (llvm::TargetLibraryInfo(libc).getLibFunc(callee, known)) return false;
  }
  return !callee.onlyReadsMemory();
}

}  // namespace shadowib::portable::compiler
