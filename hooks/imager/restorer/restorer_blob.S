// The restorer's code as data of the commands.
        .section .rodata
        .globl  shadowib_restorer_start, shadowib_restorer_end
        .hidden shadowib_restorer_start, shadowib_restorer_end
        .balign 4096
shadowib_restorer_start:
        .incbin SHADOWIB_RESTORER_BINARY
shadowib_restorer_end:
        .section .note.GNU-stack, "", @progbits
