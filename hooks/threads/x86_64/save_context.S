// save_context and its second return. System V x86-64. Layout: struct ThreadContext in hooks/threads/thread_context.h.
#define CTX_RBX 0
#define CTX_RBP 8
#define CTX_R12 16
#define CTX_R13 24
#define CTX_R14 32
#define CTX_R15 40
#define CTX_RSP 48
#define CTX_RIP 56
#define CTX_MASK 64
#define CTX_MXCSR 72
#define CTX_FCW 76
#define CTX_RESUME 80
#define SYS_rt_sigprocmask 14
#define SIG_SETMASK 2

        .text
        .globl  save_context
        .hidden save_context
        .type   save_context, @function
        .p2align 4
save_context:
        .cfi_startproc
        endbr64
        movq    %rbx, CTX_RBX(%rdi)
        movq    %rbp, CTX_RBP(%rdi)
        movq    %r12, CTX_R12(%rdi)
        movq    %r13, CTX_R13(%rdi)
        movq    %r14, CTX_R14(%rdi)
        movq    %r15, CTX_R15(%rdi)
        leaq    8(%rsp), %rax
        movq    %rax, CTX_RSP(%rdi)
        movq    (%rsp), %rax
        movq    %rax, CTX_RIP(%rdi)
        stmxcsr CTX_MXCSR(%rdi)
        fnstcw  CTX_FCW(%rdi)
        leaq    shadowib_resume_context(%rip), %rax
        movq    %rax, CTX_RESUME(%rdi)
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        call    shadowib_record_thread
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        xorl    %eax, %eax
        ret
        .cfi_endproc
        .size   save_context, .-save_context

// Entered from the restorer with rdi = context, on a stack of the restorer's, all signals blocked. From the first change
// of rsp on nothing of the restorer is used any more: it is counted out before the mask is set, so that the saving
// thread knows when the restorer can be unmapped.
        .globl  shadowib_resume_context
        .hidden shadowib_resume_context
        .type   shadowib_resume_context, @function
        .p2align 4
shadowib_resume_context:
        .cfi_startproc
        .cfi_undefined rip
        endbr64
        movq    CTX_RSP(%rdi), %rsp
        movq    %rdi, %rbx
        lock decl shadowib_threads_in_restorer(%rip)
        movl    $SYS_rt_sigprocmask, %eax
        movl    $SIG_SETMASK, %edi
        leaq    CTX_MASK(%rbx), %rsi
        xorl    %edx, %edx
        movl    $8, %r10d
        syscall
        movq    %rbx, %rdi
        ldmxcsr CTX_MXCSR(%rdi)
        fldcw   CTX_FCW(%rdi)
        movq    CTX_RBX(%rdi), %rbx
        movq    CTX_RBP(%rdi), %rbp
        movq    CTX_R12(%rdi), %r12
        movq    CTX_R13(%rdi), %r13
        movq    CTX_R14(%rdi), %r14
        movq    CTX_R15(%rdi), %r15
        movl    $1, %eax
        jmpq    *CTX_RIP(%rdi)
        .cfi_endproc
        .size   shadowib_resume_context, .-shadowib_resume_context

        .section .note.GNU-stack, "", @progbits
