// The mode `everywhere` of tests: calls of shadowib_portable_site at places chosen by a seed, also within
// expressions.
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/InstIterator.h>

#include <algorithm>
#include <random>

#include "libraries/portable/compiler/facts.h"
#include "libraries/portable/compiler/ir/instrument.h"

namespace shadowib::portable::compiler {
namespace {

constexpr unsigned kOneIn = 24;  // instructions
constexpr unsigned kMost = 10;   // sites of one function

bool may_stand_before(const llvm::Instruction& instruction) {
  return !llvm::isa<llvm::PHINode>(instruction) && !llvm::isa<llvm::AllocaInst>(instruction) &&
         !instruction.isEHPad() && !llvm::isa<llvm::UnreachableInst>(instruction);
}

}  // namespace

void add_random_sites(llvm::Module& module, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  auto& context = module.getContext();
  auto site = module.getOrInsertFunction("shadowib_portable_site",
                                         llvm::FunctionType::get(llvm::Type::getVoidTy(context), false));
  facts().may_site.insert("shadowib_portable_site");
  for (llvm::Function& function : module) {
    if (function.isDeclaration() || facts().in_system.count(function.getName().str())) continue;
    std::vector<llvm::Instruction*> places;
    for (llvm::Instruction& instruction : llvm::instructions(function)) {
      if (may_stand_before(instruction) && random() % kOneIn == 0) places.push_back(&instruction);
    }
    std::shuffle(places.begin(), places.end(), random);
    if (places.size() > kMost) places.resize(kMost);
    for (llvm::Instruction* place : places) {
      llvm::IRBuilder<> builder(place);
      auto* call = builder.CreateCall(site);
      if (function.getSubprogram() && !call->getDebugLoc())
        call->setDebugLoc(
            llvm::DILocation::get(context, function.getSubprogram()->getLine(), 0, function.getSubprogram()));
    }
  }
}

}  // namespace shadowib::portable::compiler
