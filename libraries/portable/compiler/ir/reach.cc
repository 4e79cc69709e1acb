// Which functions and calls may reach a site.
//
// A call into another file may, unless it is libc's or marked SHADOWIB_NO_SITE. A call by pointer may.
#include <llvm/ADT/Triple.h>
#include <llvm/IR/InstIterator.h>

#include "libraries/portable/compiler/facts.h"
#include "libraries/portable/compiler/ir/instrument.h"

namespace shadowib::portable::compiler {
namespace {

const llvm::Function* callee_of(const llvm::CallBase& call) {
  return llvm::dyn_cast<llvm::Function>(call.getCalledOperand()->stripPointerCastsAndAliases());
}

// What the compiler itself calls: exceptions, guards of static variables.
bool of_cplusplus(llvm::StringRef name) {
  return name.startswith("__cxa_") || name.startswith("_Unwind_") || name.startswith("__gxx_") ||
         name == "_ZSt9terminatev";
}

}  // namespace

// From the calls that may reach a site whatever the module has, to their callers, to theirs. Looks at each call once.
Reach::Reach(llvm::Module& module) : libc_(llvm::Triple(module.getTargetTriple())) {
  llvm::DenseMap<const llvm::Function*, std::vector<const llvm::Function*>> callers;
  std::vector<const llvm::Function*> found;
  for (llvm::Function& function : module) {
    if (function.isDeclaration() || facts().no_site.count(function.getName().str())) continue;
    const bool in_header = facts().cplusplus && facts().in_system.count(function.getName().str()) != 0;
    for (llvm::Instruction& instruction : llvm::instructions(function)) {
      auto* call = llvm::dyn_cast<llvm::CallBase>(&instruction);
      if (!call || call->isInlineAsm()) continue;
      const llvm::Function* callee = callee_of(*call);
      // A header's call by pointer, as of a facet, rarely reaches one. Its frame refuses the site if it does.
      const Answer by_pointer = in_header ? Answer::kNo : Answer::kYes;
      const Answer answer = callee ? answer_for(*callee) : by_pointer;
      if (answer == Answer::kAsItsCode) callers[callee].push_back(&function);
      if (answer == Answer::kYes && reaching_.insert(&function).second) found.push_back(&function);
    }
  }
  while (!found.empty()) {
    const llvm::Function* callee = found.back();
    found.pop_back();
    for (const llvm::Function* caller : callers.lookup(callee)) {
      if (reaching_.insert(caller).second) found.push_back(caller);
    }
  }
}

bool Reach::may_reach(const llvm::CallBase& call) const {
  if (call.isInlineAsm()) return false;
  const llvm::Function* callee = callee_of(call);
  if (!callee) return true;
  const Answer answer = answer_for(*callee);
  return answer == Answer::kYes || (answer == Answer::kAsItsCode && reaching_.count(callee) != 0);
}

Reach::Answer Reach::answer_for(const llvm::Function& callee) const {
  if (callee.isIntrinsic()) return Answer::kNo;
  const std::string name = callee.getName().str();
  if (facts().may_site.count(name)) return Answer::kYes;
  if (facts().no_site.count(name)) return Answer::kNo;
  if (!callee.isDeclaration() && !callee.isInterposable()) return Answer::kAsItsCode;
  if (facts().cplusplus && (facts().in_system.count(name) || of_cplusplus(name))) return Answer::kNo;
  llvm::LibFunc known;
  if (callee.isDeclaration() && llvm::TargetLibraryInfo(libc_).getLibFunc(callee, known)) return Answer::kNo;
  return Answer::kYes;
}

}  // namespace shadowib::portable::compiler
