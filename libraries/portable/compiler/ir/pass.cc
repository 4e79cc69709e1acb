// The IR half: a module pass, first in clang's pipeline.
#include <llvm/IR/DebugInfo.h>
#include <llvm/IR/DiagnosticInfo.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Passes/PassPlugin.h>
#include <llvm/Support/raw_ostream.h>

#include "libraries/portable/compiler/facts.h"
#include "libraries/portable/compiler/ir/instrument.h"
#include "libraries/portable/compiler/ir/tables.h"

namespace shadowib::portable::compiler {
namespace {

constexpr const char* kMain = "shadowib_portable_main";

// The runtime calls the program's main, and calls it again after each leave.
void wrap_main(llvm::Module& module) {
  llvm::Function* main = module.getFunction("main");
  if (!main || main->isDeclaration()) return;
  auto& context = module.getContext();
  main->setName(kMain);
  main->setLinkage(llvm::GlobalValue::InternalLinkage);
  auto *number = llvm::Type::getInt32Ty(context), *byte = llvm::Type::getInt8Ty(context);
  auto *pointer = byte->getPointerTo(), *texts = pointer->getPointerTo();
  auto* type = llvm::FunctionType::get(number, {number, texts, texts}, false);
  auto* thunk = llvm::Function::Create(type, llvm::GlobalValue::InternalLinkage, "shadowib_portable_thunk", module);
  thunk->addFnAttr(llvm::Attribute::NoInline);
  llvm::IRBuilder<> builder(llvm::BasicBlock::Create(context, "", thunk));
  std::vector<llvm::Value*> arguments;
  for (unsigned i = 0; i < main->arg_size(); i++)
    arguments.push_back(builder.CreateBitOrPointerCast(thunk->getArg(i), main->getArg(i)->getType()));
  auto* result = builder.CreateCall(main, arguments);
  result->setTailCallKind(llvm::CallInst::TCK_NoTail);
  builder.CreateRet(result);

  auto* entry = llvm::Function::Create(type, llvm::GlobalValue::ExternalLinkage, "main", module);
  builder.SetInsertPoint(llvm::BasicBlock::Create(context, "", entry));
  auto* run_type = llvm::FunctionType::get(number, {thunk->getType(), pointer, number, texts, texts}, false);
  builder.CreateRet(builder.CreateCall(module.getOrInsertFunction("shadowib_portable_run", run_type),
                                       {thunk, llvm::ConstantExpr::getPointerCast(main, pointer), entry->getArg(0),
                                        entry->getArg(1), entry->getArg(2)}));
}

void report(const FrameLayout& frame) {
  const auto* source = frame.function->getSubprogram();
  for (const SiteCall& site : frame.sites) {
    llvm::DebugLoc where = site.call->getDebugLoc();
    llvm::errs() << (source ? source->getFilename() : "") << ":" << (where ? where.getLine() : 0) << ": "
                 << (source ? source->getName() : frame.function->getName()) << " may reach a site, "
                 << site.live.size() << " values live\n";
  }
}

class Pass : public llvm::PassInfoMixin<Pass> {
 public:
  static bool isRequired() { return true; }

  llvm::PreservedAnalyses run(llvm::Module& module, llvm::ModuleAnalysisManager&) {
    if (module.debug_compile_units_begin() == module.debug_compile_units_end() && !module.empty()) {
      module.getContext().emitError("shadowib: " + module.getSourceFileName() +
                                    " has no debug information; compile it with shadowib-cc");
      return llvm::PreservedAnalyses::all();
    }
    const Records records(module);
    if (facts().everywhere) add_random_sites(module, facts().everywhere_seed);
    pad_globals(module);
    Tables tables(module, records);
    type_heap(module, tables);
    Reach reach(module);
    std::vector<llvm::Function*> functions;
    for (llvm::Function& function : module) {
      if (reach.instrumented(function)) functions.push_back(&function);
    }
    std::vector<FrameLayout> frames(functions.size());
    for (unsigned i = 0; i < functions.size(); i++) {
      if (!prepare_frame(*functions[i], reach, records, frames[i])) frames[i].sites.clear();
    }
    for (FrameLayout& frame : frames) {
      if (frame.sites.empty()) continue;
      if (facts().report) report(frame);
      write_ways(frame, tables);
    }
    tables.finish();
    wrap_main(module);
    if (facts().strip_debug) llvm::StripDebugInfo(module);
    if (llvm::verifyModule(module, &llvm::errs()))
      module.getContext().emitError("shadowib: a fault of the plugin; please report it");
    return llvm::PreservedAnalyses::none();
  }
};

}  // namespace
}  // namespace shadowib::portable::compiler

extern "C" __attribute__((visibility("default"))) llvm::PassPluginLibraryInfo llvmGetPassPluginInfo() {
  return {LLVM_PLUGIN_API_VERSION, "shadowib", SHADOWIB_VERSION, [](llvm::PassBuilder& builder) {
            builder.registerPipelineStartEPCallback([](llvm::ModulePassManager& passes, llvm::OptimizationLevel) {
              passes.addPass(shadowib::portable::compiler::Pass());
            });
          }};
}
