// Where the bytes of checkpoint sets lie. Checkpoint, verify, list, gc and restart know sets by this interface only.
//
// A set is a directory of named pieces: images, the manifest, its checksum. It is staged under a hidden name and
// appears by one rename: it exists whole or not at all (P3). A store keeps bytes and knows nothing of their meaning.
//
// For commands; a store may be used by one thread at a time. A member writes its image itself, without heap, into the
// staging directory that the command names.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/store/files.h"
#include "shadowib/base/status.h"

namespace shadowib {

// An entry of a store.
struct StoredSet {
  std::string path;  // absolute
  std::string job;
  std::uint32_t number = 0;
  bool committed = false;  // false: being written or removed, or left by a command that died
};

class Store {
 public:
  virtual ~Store() = default;

  // Creates a staging directory for the job's next number. kUsage: no job name; kIo tells ENOSPC, EACCES with the
  // path.
  virtual Status stage(const std::string& job, std::string* staging, std::uint32_t* number) = 0;
  // Writes a small piece and syncs it.
  virtual Status write(const std::string& staging, const std::string& piece, std::string_view content) = 0;
  // Syncs a piece that a member has written. kIo: it does not have `bytes` bytes.
  virtual Status sync(const std::string& staging, const std::string& piece, std::uint64_t bytes) = 0;
  // Makes the staged set the job's set of that number. Durable when ok; otherwise no such set exists and *set_path is
  // empty, or nobody knows and it is not. kBusy: it exists already.
  virtual Status commit(const std::string& staging, const std::string& job, std::uint32_t number,
                        std::string* set_path) = 0;
  // Removes what a checkpoint that failed has left. Never a committed set (kUsage).
  virtual Status discard(const std::string& staging) = 0;

  // All sets, committed or not, in no order. An absent store is empty.
  virtual Status list(std::vector<StoredSet>* sets) = 0;
  // Names of the pieces of a set.
  virtual Status pieces(const std::string& set_path, std::vector<std::string>* names) = 0;
  // A small piece, whole. kIo with errno ENOENT: there is none.
  virtual Status read(const std::string& set_path, const std::string& piece, std::string* content) = 0;
  // Replaces a small piece of a committed set: it has the old or the new content at any moment, and the new one when
  // ok.
  virtual Status replace(const std::string& set_path, const std::string& piece, std::string_view content) = 0;
  // Opens a piece for reading; the descriptor is the caller's.
  virtual Status open(const std::string& set_path, const std::string& piece, int* fd) = 0;
  // Removes a committed set. It is hidden by a rename first, so that no list shows half of it. Syncs nothing.
  virtual Status remove(const std::string& set_path) = 0;
};

// The store below the checkpoint directory: <directory>/sets.
std::unique_ptr<Store> open_directory_store(const std::string& directory, Files& files = system_files());
// The store that a set lies in, wherever it has been moved to.
std::unique_ptr<Store> open_store_of(const std::string& set_path, Files& files = system_files());

}  // namespace shadowib
