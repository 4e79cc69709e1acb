// A far place: keeps whole objects by name, on another file system or in an object store.
//
// For commands. One thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/store/pieces.h"
#include "shadowib/base/status.h"

namespace shadowib {

// The words after --far. dir:PATH or exec:CMD.
struct FarSpec {
  std::string directory;             // absolute; "" for exec:
  std::vector<std::string> command;  // the program and its first arguments

  std::string text() const;  // as --far takes it
};

// A relative path is made absolute. kUsage: `text` is no far place.
Status parse_far(std::string_view text, FarSpec* spec);

struct FarObject {
  bool found = false;
  std::uint64_t bytes = 0;
  std::string xxh3;  // 32 hex digits; "": the place does not tell
};

// Takes the next part of an object.
using PieceSink = std::function<Status(std::string_view part)>;

class FarPlace {
 public:
  virtual ~FarPlace() = default;
  // kNotFound, kPermission, kIo: the place cannot be used.
  virtual Status check() = 0;
  virtual Status stat(const std::string& name, FarObject* object) = 0;
  // Writes or replaces an object of `bytes` bytes.
  virtual Status put(const std::string& name, std::uint64_t bytes, const PieceSource& source) = 0;
  virtual Status get(const std::string& name, const PieceSink& sink) = 0;
  // ok if there is none.
  virtual Status remove(const std::string& name) = 0;
};

// `stall_ms`: how long a command may move no byte.
std::unique_ptr<FarPlace> open_far(const FarSpec& spec, int stall_ms);

// Parts joined by '/'. Each part has 1 to 200 of A-Za-z0-9._- and begins with a letter, a digit or '_'.
bool valid_object_name(const std::string& name);

// A failure that another try may not meet.
bool may_pass(const Status& status);

}  // namespace shadowib
