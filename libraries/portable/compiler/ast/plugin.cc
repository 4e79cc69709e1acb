// The AST half: tells the IR half what only sources say. Runs before code is generated.
#include <clang/AST/AST.h>
#include <clang/AST/ASTConsumer.h>
#include <clang/AST/Attr.h>
#include <clang/AST/RecursiveASTVisitor.h>
#include <clang/Basic/SourceManager.h>
#include <clang/Frontend/CompilerInstance.h>
#include <clang/Frontend/FrontendPluginRegistry.h>
#include <llvm/Support/xxhash.h>

#include "libraries/portable/compiler/ast/allocations.h"
#include "libraries/portable/compiler/facts.h"

namespace shadowib::portable::compiler {
namespace {

// The text of a declaration as the syntax tree has it, without layout: macros and blanks are gone, types have their
// names.
template <typename Decl>
std::uint64_t source_hash(const Decl* declaration, const clang::ASTContext& context) {
  std::string text, packed;
  llvm::raw_string_ostream stream(text);
  clang::PrintingPolicy policy = context.getPrintingPolicy();
  policy.TerseOutput = false;
  declaration->print(stream, policy);
  for (char c : stream.str()) {
    if (!isspace(static_cast<unsigned char>(c))) packed += c;
  }
  return llvm::xxHash64(packed);
}

bool annotated(const clang::FunctionDecl* function, llvm::StringRef text) {
  for (const auto* attribute : function->specific_attrs<clang::AnnotateAttr>()) {
    if (attribute->getAnnotation() == text) return true;
  }
  return false;
}

class Visitor : public clang::RecursiveASTVisitor<Visitor> {
 public:
  explicit Visitor(clang::CompilerInstance& compiler) : compiler_(compiler) {}

  bool VisitFunctionDecl(clang::FunctionDecl* function) {
    auto& context = compiler_.getASTContext();
    std::string name = function->getNameAsString();
    if (const auto* label = function->getAttr<clang::AsmLabelAttr>()) name = label->getLabel().str();
    bool system = context.getSourceManager().isInSystemHeader(function->getLocation());
    if (annotated(function, "shadowib_may_site")) {
      facts().may_site.insert(name);
    } else if (annotated(function, "shadowib_no_site") || system) {
      facts().no_site.insert(name);
    }
    if (function->doesThisDeclarationHaveABody()) {
      if (system) facts().in_system.insert(name);
      facts().function_hash[name] = source_hash(function, context);
    }
    return true;
  }

  bool VisitVarDecl(clang::VarDecl* variable) {
    if (variable->hasGlobalStorage() && variable->isThisDeclarationADefinition() != clang::VarDecl::DeclarationOnly)
      facts().global_hash[variable->getNameAsString()] = source_hash(variable, compiler_.getASTContext());
    return true;
  }

 private:
  clang::CompilerInstance& compiler_;
};

class Consumer : public clang::ASTConsumer {
 public:
  explicit Consumer(clang::CompilerInstance& compiler) : compiler_(compiler), visitor_(compiler) {}

  bool HandleTopLevelDecl(clang::DeclGroupRef group) override {
    for (clang::Decl* declaration : group) {
      type_allocations(compiler_, declaration);
      visitor_.TraverseDecl(declaration);
    }
    return true;
  }

 private:
  clang::CompilerInstance& compiler_;
  Visitor visitor_;
};

class Action : public clang::PluginASTAction {
 protected:
  std::unique_ptr<clang::ASTConsumer> CreateASTConsumer(clang::CompilerInstance& compiler, llvm::StringRef) override {
    return std::make_unique<Consumer>(compiler);
  }

  bool ParseArgs(const clang::CompilerInstance& compiler, const std::vector<std::string>& arguments) override {
    for (llvm::StringRef argument : arguments) {
      if (argument == "report") {
        facts().report = true;
      } else if (argument == "strip") {
        facts().strip_debug = true;
      } else if (argument.consume_front("everywhere=") && !argument.getAsInteger(10, facts().everywhere_seed)) {
        facts().everywhere = true;
      } else {
        auto& diagnostics = compiler.getDiagnostics();
        diagnostics.Report(diagnostics.getCustomDiagID(clang::DiagnosticsEngine::Error,
                                                       "shadowib: unknown argument '%0' of the plugin"))
            << argument;
        return false;
      }
    }
    return true;
  }

  ActionType getActionType() override { return AddBeforeMainAction; }
};

}  // namespace

Facts& facts() {
  static Facts only;
  return only;
}

}  // namespace shadowib::portable::compiler

static clang::FrontendPluginRegistry::Add<shadowib::portable::compiler::Action> action("shadowib",
                                                                                       "portable checkpoints");
