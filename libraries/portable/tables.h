// The tables that the compiler half writes into each object file, and the calls that instrumented code makes: the
// contract between shadowib-cc and libshadowib-portable. The compiler half writes these structs field by field
// (compiler/ir/tables.cc).
//
// A new field or another order raises kTablesVersion; the runtime refuses tables of another version.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shadowib::portable {

constexpr std::uint32_t kTablesVersion = 3;

// How the stack is used. Instrumented code reads it at its entry and after each call that may reach a site.
enum Mode : std::uint32_t { kModeNormal = 0, kModeLeave = 1, kModeEnter = 2 };

enum TypeKind : std::uint32_t {
  kTypeUnknown = 0,
  kTypeVoid,
  kTypeSigned,
  kTypeUnsigned,
  kTypeChar,  // keeps its bits, whatever its sign
  kTypeBool,
  kTypeFloat,  // size and `format` tell which
  kTypePointer,
  kTypeFunction,
  kTypeStruct,
  kTypeUnion,
  kTypeArray,
  kTypeComplex,
  kTypeVector,
  kTypeOpaque,  // of the program, but without a definition
  kTypeBits,    // a whole number between two steps of an expression, whose sign is not known
};

// The `format` of a struct or union.
enum RecordFormat : std::uint32_t {
  kRecordPlain = 0,
  kRecordText,        // std::string: a pointer to its characters, their number, a union
  kRecordTextOrRoom,  // that union: the last byte is 0 if the characters lie here, and 255 if the room for them is
                      // told
  kRecordOptional,    // std::optional's payload: a value, and whether it is there
  kRecordVector,      // std::vector's pointers: begin, end, end of the room
};

enum FloatFormat : std::uint32_t { kFloatNone = 0, kFloatIeee, kFloatX87, kFloatDoubleDouble };

struct Type;

struct Member {
  const char* name;
  const Type* type;
  std::uint64_t bit_offset;  // from the begin of the struct
  std::uint64_t bit_width;   // 0: no bit-field
};

struct Type {
  const char* name;
  std::uint32_t kind;
  std::uint32_t format;
  std::uint64_t size;   // bytes
  std::uint64_t count;  // elements of an array; members of a struct
  const Type* element;  // of an array, vector, complex; of a pointer: what it leads to, or null if that is not known
  const Member* members;
};

enum SlotFlags : std::uint32_t {
  kSlotAddress = 1,  // the program may hold pointers to it: the eight bytes before `offset` are its address
  kSlotUnnamed = 2,  // a value between two steps of an expression
};

// One variable of a frame at a site.
struct Slot {
  const char* name;
  const Type* type;
  std::uint64_t size;
  std::uint64_t offset;  // in the frame's buffer
  std::uint32_t line;
  std::uint32_t flags;
};

struct Function;

struct Site {
  const Function* function;
  const Slot* slots;
  const char* callee;
  std::uint64_t buffer_size;
  std::uint32_t slot_count;
  std::uint32_t index;  // in its function
  std::uint32_t line;
  std::uint32_t column;
};

struct Function {
  const char* name;
  const char* file;
  const void* address;
  const Site* const* sites;
  std::uint64_t source_hash;
  std::uint32_t site_count;  // 0: not instrumented, known as a target of pointers
  std::uint32_t line;
};

enum GlobalFlags : std::uint32_t {
  kGlobalConstant = 1,
  kGlobalLocal = 2,
  kGlobalLiteral = 4,
  kGlobalThread = 8,  // each thread has its own; `address` is null
};

struct Global {
  const char* name;
  const char* file;
  void* address;
  const Type* type;
  std::uint64_t size;
  std::uint64_t source_hash;
  std::uint32_t line;
  std::uint32_t flags;
};

// A call of malloc or the like, and the type that it is for.
struct Allocation {
  const Type* type;  // null: the compiler could not tell
  const char* file;
  const char* function;  // of C++, by the linker's name: instances of a template have calls at one place; else null
  std::uint32_t line;
  std::uint32_t column;
};

// A static variable of a C++ function, whose destructor runs at the end of the process that made it.
struct Static {
  void (*destroy)(void*);
  void* object;
  void* library;         // as __cxa_atexit wants it
  std::uint64_t* order;  // 0: not made yet; a variable of the program, so an image has it
};

struct Module {
  const char* file;
  const char* target;
  const Function* const* functions;
  const Global* const* globals;
  std::uint32_t version;
  std::uint32_t function_count;
  std::uint32_t global_count;
  std::uint32_t allocation_count;
  Module* next;  // of the runtime
  const Allocation* const* allocations;
  std::uint64_t source_hash;  // of all functions and variables that the file defines
  const Static* const* statics;
  std::uint64_t static_count;
};

}  // namespace shadowib::portable

extern "C" {
// Mode. Volatile: a signal's handler is no reason, but a compiler that keeps it in a register over a call would miss
// a leave.
extern volatile std::uint32_t shadowib_portable_mode;
// From constructors and destructors of an object file: its tables come and go with its library.
void shadowib_portable_register(shadowib::portable::Module* module);
void shadowib_portable_unregister(shadowib::portable::Module* module);
// Mode LEAVE: a frame asks for the buffer of its values, innermost frame first.
unsigned char* shadowib_portable_leave(const shadowib::portable::Site* site);
// Then, with the addresses of its variables in the buffer, it has the runtime copy them.
void shadowib_portable_keep(const shadowib::portable::Site* site);
// Mode ENTER: a function asks which of its sites it stood at, outermost frame first.
std::uint32_t shadowib_portable_enter(const shadowib::portable::Function* function);
// Then for the buffer, into which it writes the new addresses of its variables that have any;
unsigned char* shadowib_portable_frame(const shadowib::portable::Site* site);
// then the runtime fills those variables, and makes the values in the buffer ready to be loaded.
void shadowib_portable_fill(const shadowib::portable::Site* site);
// The program's malloc and the like, for a block whose type the compiler knows, or null for one that it does not.
void* shadowib_portable_malloc(std::size_t size, const shadowib::portable::Allocation* allocation);
void* shadowib_portable_calloc(std::size_t count, std::size_t size, const shadowib::portable::Allocation* allocation);
void* shadowib_portable_realloc(void* block, std::size_t size, const shadowib::portable::Allocation* allocation);
void* shadowib_portable_aligned_alloc(std::size_t alignment, std::size_t size,
                                      const shadowib::portable::Allocation* allocation);
char* shadowib_portable_strdup(const char* text, const shadowib::portable::Allocation* allocation);
char* shadowib_portable_strndup(const char* text, std::size_t most, const shadowib::portable::Allocation* allocation);
void shadowib_portable_free(void* block);
// Before a call of a function that returns void*: the type of the first block of no known type that it allocates.
// Null behind the call.
void shadowib_portable_hint(const shadowib::portable::Allocation* allocation);
// A static variable of a function is made, and its destructor registered.
void shadowib_portable_made(const shadowib::portable::Static* made);
// Calls the program's main, again and again until it returns in mode NORMAL. `thunk` is main with three parameters.
int shadowib_portable_run(int (*thunk)(int, char**, char**), const void* main_function, int argc, char** argv,
                          char** envp);
}
