// The AST half: tells the IR half what only sources say. Runs before code is generated.
#include <clang/AST/AST.h>
#include <clang/AST/ASTConsumer.h>
#include <clang/AST/Attr.h>
#include <clang/AST/Mangle.h>
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
#include "libraries/portable/compiler/ast/records.h"
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

// The names by which the linker knows a function or variable: several of a constructor, none of a template.
class LinkerNames {
 public:
  explicit LinkerNames(clang::ASTContext& context) : names_(context), cplusplus_(context.getLangOpts().CPlusPlus) {}

  std::vector<std::string> of(const clang::NamedDecl* declaration) {
    if (!cplusplus_) {
      if (const auto* label = declaration->getAttr<clang::AsmLabelAttr>()) return {label->getLabel().str()};
      return {declaration->getNameAsString()};
    }
    const auto* function = llvm::dyn_cast<clang::FunctionDecl>(declaration);
    if (declaration->isTemplated() || (function && function->getType()->isUndeducedType())) return {};
    if (llvm::isa<clang::CXXDeductionGuideDecl>(declaration)) return {};
    if (const auto* member = llvm::dyn_cast<clang::CXXMethodDecl>(declaration)) {
      // Only constructors and destructors have several.
      if (llvm::isa<clang::CXXConstructorDecl>(member) || llvm::isa<clang::CXXDestructorDecl>(member))
        return names_.getAllManglings(declaration);
    }
    return {names_.getName(declaration)};
  }

 private:
  clang::ASTNameGenerator names_;
  bool cplusplus_;
};

class Visitor : public clang::RecursiveASTVisitor<Visitor> {
 public:
  explicit Visitor(clang::CompilerInstance& compiler)
      : compiler_(compiler), names_(compiler.getASTContext()), cplusplus_(compiler.getLangOpts().CPlusPlus) {}

  bool shouldVisitTemplateInstantiations() const { return true; }

  bool VisitFunctionDecl(clang::FunctionDecl* function) {
    const bool system = in_system(function);
    const bool body = function->doesThisDeclarationHaveABody();
    const std::uint64_t hash = body && !system ? source_hash(function, compiler_) : 0;
    if (hash && !function->isTemplateInstantiation()) hash_source(function, hash);
    for (const std::string& name : names_.of(function)) {
      if (annotated(function, "shadowib_may_site")) {
        facts().may_site.insert(name);
      } else if (annotated(function, "shadowib_no_site") || (system && !cplusplus_)) {
        facts().no_site.insert(name);
      }
      // Code of a header of C++ may call the program's: its calls tell whether it reaches a site.
      if (system && (body || cplusplus_)) facts().in_system.insert(name);
      if (body && !system) facts().function_hash[name] = hash;
    }
    return true;
  }

  bool VisitVarDecl(clang::VarDecl* variable) {
    const bool defined =
        variable->hasGlobalStorage() && variable->isThisDeclarationADefinition() != clang::VarDecl::DeclarationOnly;
    if (!defined || in_system(variable)) return true;
    const std::uint64_t hash = source_hash(variable, compiler_);
    if (!clang::isTemplateInstantiation(variable->getTemplateSpecializationKind())) hash_source(variable, hash);
    for (const std::string& name : names_.of(variable)) facts().global_hash[name] = hash;
    return true;
  }

 private:
  bool in_system(const clang::Decl* declaration) const {
    return compiler_.getSourceManager().isInSystemHeader(declaration->getLocation());
  }

  // By a name that is equal on every architecture. What lies in a function is of its text.
  void hash_source(const clang::NamedDecl* declaration, std::uint64_t hash) const {
    if (!cplusplus_ || declaration->getParentFunctionOrMethod()) return;
    facts().source_hash.insert(declaration->getQualifiedNameAsString() + "=" + std::to_string(hash));
  }

  clang::CompilerInstance& compiler_;
  LinkerNames names_;
  bool cplusplus_;
};

class Consumer : public clang::ASTConsumer {
 public:
  explicit Consumer(clang::CompilerInstance& compiler) : compiler_(compiler) {}

  bool HandleTopLevelDecl(clang::DeclGroupRef group) override {
    const bool cplusplus = compiler_.getLangOpts().CPlusPlus;
    for (clang::Decl* declaration : group) {
      type_allocations(compiler_, declaration);
      if (!cplusplus) visitor().TraverseDecl(declaration);
    }
    return true;
  }

  // Members and instances of templates are all there now. Code for most of them is made behind this.
  void HandleTranslationUnit(clang::ASTContext& context) override {
    if (!context.getLangOpts().CPlusPlus || compiler_.getDiagnostics().hasErrorOccurred()) return;
    facts().cplusplus = true;
    clang::Decl* all = context.getTranslationUnitDecl();
    type_allocations(compiler_, all);
    visitor().TraverseDecl(all);
    mark_records(compiler_);
  }

 private:
  Visitor& visitor() {
    if (!visitor_) visitor_ = std::make_unique<Visitor>(compiler_);
    return *visitor_;
  }

  clang::CompilerInstance& compiler_;
  std::unique_ptr<Visitor> visitor_;
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
