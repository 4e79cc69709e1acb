// A program's state: what lies where, and of which type. An image's, or the one of the process at hand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "libraries/portable/image/layout.h"

namespace shadowib::portable {

constexpr std::uint32_t kImageVersion = 3;
constexpr std::uint64_t kNoData = ~std::uint64_t{0};

constexpr std::uint32_t kNoModule = ~std::uint32_t{0};

struct ModuleName {
  std::string file;
  std::uint64_t source_hash = 0;
};

struct FunctionName {
  std::string file, name;
  std::uint64_t source_hash = 0;
  std::uint64_t address = 0;
  std::uint32_t module = kNoModule;  // of Image::modules; a header's function may be in several
};

// A function or variable of a library that a pointer may lead to: by its name.
struct ForeignName {
  std::string name;
  std::uint64_t address = 0;
};

struct AllocationSite {
  std::string file, function;  // the function of C++ that has the call; else empty
  std::uint32_t line = 0, column = 0;
  TypeIndex type = kNoType;  // kNoType: the compiler could not tell
  std::uint32_t module = kNoModule;
};

enum ObjectKind : std::uint32_t { kObjectGlobal = 0, kObjectLiteral, kObjectHeap, kObjectSlot };

struct Object {
  std::uint32_t kind = kObjectGlobal;
  std::uint32_t flags = 0;    // GlobalFlags or SlotFlags; of a block: which power of two it is aligned to
  std::uint64_t address = 0;  // 0: the program holds no pointers to it
  std::uint64_t size = 0;
  TypeIndex type = kNoType;
  std::uint32_t line = 0;
  std::uint64_t data = kNoData;  // where its bytes are in Image::bytes; kNoData: none, the source has them
  std::string file, name;        // of a global, literal, or slot
  std::uint64_t source_hash = 0;
  std::uint32_t allocation = 0;      // of a heap block
  std::uint32_t module = kNoModule;  // of a global or literal
};

struct FrameState {
  std::uint32_t function = 0;  // of Image::functions
  std::uint32_t site = 0;
  std::uint32_t sites = 0;  // of the function
  std::uint32_t line = 0;
  std::string callee;
  std::uint32_t first_slot = 0, slot_count = 0;  // of Image::objects
};

struct Image {
  std::string target;   // as clang names it
  std::string version;  // of shadowib
  std::uint32_t member = 0;
  std::uint64_t visits = 0;  // of sites, until this one
  std::uint64_t id = 0;
  Layouts layouts;
  std::vector<ModuleName> modules;
  std::vector<FunctionName> functions;
  std::vector<ForeignName> foreign;
  std::vector<AllocationSite> allocations;
  std::vector<Object> objects;        // globals, heap blocks, slots of frames; no order of addresses
  std::vector<FrameState> frames;     // innermost first
  std::vector<unsigned char> stream;  // it was decoded from
  std::size_t first_byte = 0;         // of the values, which are the stream's end

  std::size_t byte_count() const { return stream.size() - first_byte; }
  const unsigned char* data(const Object& object) const { return stream.data() + first_byte + object.data; }
};

// The stream of an image without its bytes, which follow it directly.
std::vector<unsigned char> encode(const Image& image, std::uint64_t byte_count);
// Checks all that others rely on: indices, sizes against types, places of bytes. Throws Refused.
Image decode(std::vector<unsigned char> stream);
Image read_image(const std::string& path);

// The bytes of an object that its type describes: of a heap block and of a struct with an open array at its end all.
std::uint64_t value_bytes(const Image& image, const Object& object);

// "step()", or of C++ "Stack::push(int)".
std::string function_text(const std::string& name);

// "global sum of lu.c", "block of lu.c:27", "local i of step()".
std::string object_name(const Image& image, const Object& object);

// Where an address leads.
struct Target {
  enum Kind : std::uint8_t { kNull, kObject, kFunction, kForeign, kNowhere };
  Kind kind = kNull;
  std::uint32_t index = 0;   // of the object, function or foreign name
  std::uint64_t offset = 0;  // bytes within the object; at most its size
};

// Finds objects by address. Refers to the image, which must stay as it is.
class AddressIndex {
 public:
  explicit AddressIndex(const Image& image);
  Target find(std::uint64_t address) const;

 private:
  struct Place {
    std::uint64_t begin, end;
    Target::Kind kind;
    std::uint32_t index;
  };
  std::vector<Place> places_;  // by their begins
};

}  // namespace shadowib::portable
