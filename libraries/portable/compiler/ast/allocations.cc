#include "libraries/portable/compiler/ast/allocations.h"

#include <clang/AST/AST.h>
#include <clang/AST/Attr.h>
#include <clang/AST/Expr.h>
#include <clang/AST/RecursiveASTVisitor.h>
#include <clang/Frontend/CompilerInstance.h>

namespace shadowib::portable::compiler {
namespace {

// The call under parentheses and conversions that keep void*.
clang::CallExpr* allocating_call(clang::Expr* expression) {
  auto* call = llvm::dyn_cast<clang::CallExpr>(expression->IgnoreParens());
  return call && call->getDirectCallee() && call->getType()->isVoidPointerType() ? call : nullptr;
}

class Typer : public clang::RecursiveASTVisitor<Typer> {
 public:
  explicit Typer(clang::ASTContext& context) : context_(context) {}

  // Lists of initial values have their conversions in the form that the compiler makes of them.
  bool shouldVisitImplicitCode() const { return true; }
  bool shouldVisitTemplateInstantiations() const { return true; }

  // Before code of any caller is generated: a function that returns void* may allocate.
  bool VisitFunctionDecl(clang::FunctionDecl* function) {
    if (function->getReturnType()->isVoidPointerType() && !function->hasAttr<clang::MSAllocatorAttr>())
      function->addAttr(clang::MSAllocatorAttr::CreateImplicit(context_));
    return true;
  }

  // The compiler declares operator new by itself.
  bool VisitCallExpr(clang::CallExpr* call) {
    clang::FunctionDecl* callee = call->getDirectCallee();
    return !callee || VisitFunctionDecl(callee);
  }

  bool VisitVarDecl(clang::VarDecl* variable) {
    if (variable->hasInit()) {
      if (clang::Expr* typed = converted(variable->getInit())) variable->setInit(typed);
    }
    return true;
  }

  bool VisitStmt(clang::Stmt* statement) {
    for (clang::Stmt*& child : statement->children()) {
      if (auto* expression = llvm::dyn_cast_or_null<clang::Expr>(child)) {
        if (clang::Expr* typed = converted(expression)) child = typed;
      }
    }
    return true;
  }

 private:
  clang::Expr* converted(clang::Expr* expression) {
    auto* implicit = llvm::dyn_cast<clang::ImplicitCastExpr>(expression);
    if (!implicit || implicit->getCastKind() != clang::CK_BitCast || !implicit->getType()->isPointerType())
      return nullptr;
    clang::CallExpr* call = allocating_call(implicit->getSubExpr());
    if (!call) return nullptr;
    auto where = call->getBeginLoc();
    return clang::CStyleCastExpr::Create(context_, implicit->getType(), clang::VK_PRValue, clang::CK_BitCast,
                                         implicit->getSubExpr(), nullptr, clang::FPOptionsOverride(),
                                         context_.getTrivialTypeSourceInfo(implicit->getType(), where), where, where);
  }

  clang::ASTContext& context_;
};

}  // namespace

void type_allocations(clang::CompilerInstance& compiler, clang::Decl* declaration) {
  Typer(compiler.getASTContext()).TraverseDecl(declaration);
}

}  // namespace shadowib::portable::compiler
