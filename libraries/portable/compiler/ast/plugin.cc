// The AST half: tells the IR half what only sources say. Runs before code is generated.
#include <clang/AST/AST.h>
#include <clang/AST/ASTConsumer.h>
#include <clang/AST/Attr.h>
#include <clang/AST/RecursiveASTVisitor.h>
#include <clang/Basic/SourceManager.h>
#include <clang/Frontend/CompilerInstance.h>
#include <clang/Frontend/FrontendPluginRegistry.h>
#include <clang/Lex/Lexer.h>
#include <clang/Lex/MacroInfo.h>
#include <clang/Lex/Preprocessor.h>
#include <llvm/Support/xxhash.h>

#include <set>
#include <string>

#include "libraries/portable/compiler/ast/allocations.h"
#include "libraries/portable/compiler/facts.h"

namespace shadowib::portable::compiler {
namespace {

// The definitions of the command line (-D) that a name of the source leads to. Those of system headers and of the
// compiler differ from architecture to architecture, and do not count.
class CommandLineMacros {
 public:
  explicit CommandLineMacros(clang::Preprocessor& preprocessor) : preprocessor_(preprocessor) {}

  void add(const clang::IdentifierInfo* name, std::string& packed) {
    if (!name || !name->hasMacroDefinition() || !seen_.insert(name).second) return;
    const clang::MacroInfo* macro = preprocessor_.getMacroInfo(name);
    const auto& manager = preprocessor_.getSourceManager();
    if (!macro || macro->isBuiltinMacro() || manager.isWrittenInBuiltinFile(macro->getDefinitionLoc()) ||
        manager.isInSystemHeader(macro->getDefinitionLoc()))
      return;
    const bool counts = manager.isWrittenInCommandLineFile(macro->getDefinitionLoc());
    if (counts) packed += "-D" + name->getName().str() + '\n';
    for (const clang::Token& token : macro->tokens()) {
      if (counts) packed += preprocessor_.getSpelling(token) + '\n';
      add(token.getIdentifierInfo(), packed);
    }
  }

 private:
  clang::Preprocessor& preprocessor_;
  std::set<const clang::IdentifierInfo*> seen_;
};

// The tokens of a declaration as they are spelled: no layout, and no macro's value, which is another on another
// architecture (LONG_MAX, sizes of types). Values of the command line's macros count. 0: it has no text.
std::uint64_t source_hash(const clang::Decl* declaration, clang::CompilerInstance& compiler) {
  const auto& context = compiler.getASTContext();
  CommandLineMacros macros(compiler.getPreprocessor());
  const auto& manager = context.getSourceManager();
  const auto range = manager.getExpansionRange(declaration->getSourceRange());
  auto [file, begin] = manager.getDecomposedLoc(range.getBegin());
  auto [end_file, end] = manager.getDecomposedLoc(range.getEnd());
  bool invalid = false;
  const llvm::StringRef text = manager.getBufferData(file, &invalid);
  if (invalid || file != end_file || begin > end || end >= text.size()) return 0;
  end += clang::Lexer::MeasureTokenLength(range.getEnd(), manager, context.getLangOpts());
  clang::Lexer lexer(manager.getLocForStartOfFile(file), context.getLangOpts(), text.begin(), text.begin() + begin,
                     text.end());
  std::string packed;
  for (clang::Token token; !lexer.LexFromRawLexer(token);) {
    const unsigned at = manager.getFileOffset(token.getLocation());
    if (at >= end) break;
    packed += text.substr(at, token.getLength());
    packed += '\n';
    if (token.is(clang::tok::raw_identifier))
      macros.add(compiler.getPreprocessor().getIdentifierInfo(token.getRawIdentifier()), packed);
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
      if (!system) facts().function_hash[name] = source_hash(function, compiler_);
    }
    return true;
  }

  bool VisitVarDecl(clang::VarDecl* variable) {
    const auto& context = compiler_.getASTContext();
    const bool defined =
        variable->hasGlobalStorage() && variable->isThisDeclarationADefinition() != clang::VarDecl::DeclarationOnly;
    if (defined && !context.getSourceManager().isInSystemHeader(variable->getLocation()))
      facts().global_hash[variable->getNameAsString()] = source_hash(variable, compiler_);
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
