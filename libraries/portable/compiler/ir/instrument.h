// The parts of the IR half: which calls may reach a site, what lives there, how a frame is left and entered.
#pragma once

#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/SmallVector.h>
#include <llvm/Analysis/TargetLibraryInfo.h>
#include <llvm/IR/DebugInfoMetadata.h>
#include <llvm/IR/Instructions.h>
#include <llvm/IR/Module.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace shadowib::portable::compiler {

// reach.cc: functions of the module that may reach a site, and calls that may.
class Reach {
 public:
  explicit Reach(llvm::Module& module);
  bool may_reach(const llvm::CallBase& call) const;
  bool instrumented(const llvm::Function& function) const { return reaching_.count(&function) != 0; }

 private:
  // kAsItsCode: the module has the callee, which may if it calls one that may.
  enum class Answer { kNo, kYes, kAsItsCode };
  Answer answer_for(const llvm::Function& callee) const;
  llvm::TargetLibraryInfoImpl libc_;
  std::set<const llvm::Function*> reaching_;
};

// records.cc: which class of C++ each struct of the IR is. In C their names tell.
class Records {
 public:
  // Takes the variables that the AST half made out of the module.
  explicit Records(llvm::Module& module);
  // Null: not known.
  const llvm::DICompositeType* of(const llvm::Type* type) const { return classes_.lookup(type); }
  // Objects with an identity: a copy of their bytes is no copy. All architectures pass them by address.
  bool by_reference(const llvm::Type* type) const;

 private:
  llvm::DenseMap<const llvm::Type*, const llvm::DICompositeType*> classes_;
};

// One variable of a frame: a place on the stack that has a name, or holds a value between two steps of an expression.
struct Variable {
  llvm::Value* address = nullptr;  // an alloca, or a parameter that the ABI passes in memory
  llvm::Type* type = nullptr;
  std::uint64_t size = 0;
  bool promotable = false;  // only loaded and stored: optimisation makes it a register
  bool registered = false;  // the program may hold its address
};

// live.cc: for each of `blocks` the variables, by index, whose values are read later than its begin.
std::vector<std::set<unsigned>> live_at_begin(llvm::Function& function, const std::vector<Variable>& variables,
                                              const std::vector<llvm::BasicBlock*>& blocks);

// frames.cc: one call that may reach a site, once its block ends behind it.
struct SiteCall {
  llvm::CallBase* call = nullptr;
  llvm::BasicBlock* last = nullptr;  // where the call's normal way goes on to `after`
  llvm::BasicBlock* after = nullptr;
  llvm::AllocaInst* result = nullptr;  // null: no result, or it is not read
  llvm::AllocaInst* callee = nullptr;  // of a call by pointer
  std::vector<unsigned> live;          // of the function's variables
};

// Rewrites one function. Returns false after a refusal, which it has told.
struct FrameLayout {
  llvm::Function* function = nullptr;
  std::vector<Variable> variables;
  std::vector<SiteCall> sites;
};
bool prepare_frame(llvm::Function& function, const Reach& reach, const Records& records, FrameLayout& frame);

class Tables;
void write_ways(FrameLayout& frame, Tables& tables);

// heap.cc: calls of malloc and the like go to the runtime. Call before Reach looks at the calls.
void type_heap(llvm::Module& module, Tables& tables);
// heap.cc: a byte behind each array and struct of the file.
void pad_globals(llvm::Module& module);
// heap.cc: a byte behind each array that is a variable of a function with sites.
void pad_locals(llvm::Function& function);

// temporaries.cc: parameters and results that this architecture passes by address become variables of the function.
void localise_arguments(llvm::Function& function, const Records& records);
// temporaries.cc: of `variables` those without a name, that hold a value only between two steps of an expression; for
// each of `calls` those that live behind it.
class Temporaries {
 public:
  Temporaries(llvm::Function& function, const std::vector<Variable>& variables, const Records& records);
  bool is_one(unsigned variable) const { return uses_.count(variable) != 0; }
  std::vector<std::set<unsigned>> live_behind(const std::vector<SiteCall>& sites);

 private:
  enum class Use { kNone, kRead, kWrite };
  bool add_uses(unsigned variable, llvm::Value* pointer, std::uint64_t size, bool lenient);
  void note(unsigned variable, llvm::Instruction* at, Use use);
  llvm::Function& function_;
  std::map<unsigned, llvm::DenseMap<llvm::Instruction*, Use>> uses_;
};

// everywhere.cc: calls of shadowib_portable_site at random places.
void add_random_sites(llvm::Module& module, std::uint64_t seed);

// Tells an error with file and line; compiling fails.
void refuse(const llvm::Function& function, const llvm::Instruction* at, const std::string& text);

}  // namespace shadowib::portable::compiler
