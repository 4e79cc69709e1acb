// Shared by tests of whole images: the subject is saved, killed and restarted, and its image changed.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "hooks/imager/image_format.h"

namespace shadowib {

namespace fs = std::filesystem;
constexpr int kSaved = 10, kRight = 42;

// A program's exit status (200 + signal if it was killed) and what it said.
struct Outcome {
  int status;
  std::string text;
};

inline Outcome run(const std::vector<std::string>& arguments, const std::function<void()>& before = {}) {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return {-1, "pipe"};
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(pipe[1], 1);
    ::dup2(pipe[1], 2);
    if (before) before();
    std::vector<char*> pointers;
    for (const std::string& a : arguments) pointers.push_back(const_cast<char*>(a.c_str()));
    pointers.push_back(nullptr);
    ::execv(pointers[0], pointers.data());
    ::_exit(98);
  }
  ::close(pipe[1]);
  Outcome outcome{};
  char buffer[4096];
  for (ssize_t n; (n = ::read(pipe[0], buffer, sizeof(buffer))) > 0;)
    outcome.text.append(buffer, static_cast<unsigned>(n));
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 200 + WTERMSIG(status);
  return outcome;
}

inline void become_nobody() {
  if (::setresgid(65534, 65534, 65534) != 0 || ::setresuid(65534, 65534, 65534) != 0) ::_exit(97);
}

class Imager : public testing::Test {
 protected:
  Imager() : directory_(fs::temp_directory_path() / ("shadowib-imager-test-" + std::to_string(::getpid()))) {
    fs::remove_all(directory_);
    fs::create_directory(directory_);
    fs::permissions(directory_, fs::perms::all);
  }
  ~Imager() override {
    if (HasFailure())
      std::printf("images kept in %s; repeat with: imager_subject SCENARIO DIR; imager_restart_tool DIR 0\n",
                  directory_.c_str());
    else
      fs::remove_all(directory_);
  }

  Outcome save(const std::string& scenario, const std::function<void()>& before = {}) {
    return run({SUBJECT, scenario, directory_}, before);
  }
  Outcome restart(const std::vector<std::string>& images = {"0"}, const std::function<void()>& before = {}) {
    std::vector<std::string> arguments{RESTART_TOOL, directory_};
    arguments.insert(arguments.end(), images.begin(), images.end());
    return run(arguments, before);
  }
  fs::path image() const { return directory_ / "0.img"; }

  fs::path directory_;
};

inline void with_saver() { ::setenv("IMAGER_TEST_SAVER", "1", 1); }
inline void incremental() { ::setenv("IMAGER_TEST_INCREMENTAL", "1", 1); }
inline void incremental_with_saver() {
  incremental();
  with_saver();
}

// The bytes of an image that is changed, and whole again when it is written.
class ChangedImage {
 public:
  explicit ChangedImage(const fs::path& path) : path_(path) {
    bytes_.resize(fs::file_size(path));
    std::ifstream(path, std::ios::binary).read(bytes_.data(), static_cast<std::streamsize>(bytes_.size()));
  }
  char* at(std::uint64_t offset) { return bytes_.data() + offset; }
  // The record at `offset` has a frame, which has changed.
  void seal_frame(std::uint64_t offset) {
    RecordHeader h;
    std::memcpy(&h, at(offset), sizeof(h));
    const FrameHash hash{XXH3_64bits(at(offset + 2 * kPage), record_bytes(h.length) - 2 * kPage), {}};
    std::memcpy(at(offset + kFrameHashOffset), &hash, sizeof(hash));
    h.payload_xxh3 = XXH3_64bits(at(offset + sizeof(h)), kHashedHeadBytes);
    h.header_xxh3 = XXH3_64bits_withSeed(&h, offsetof(RecordHeader, header_xxh3), offset);
    std::memcpy(at(offset), &h, sizeof(h));
  }
  // The content of the record at `offset` has changed.
  void seal(std::uint64_t offset) {
    RecordHeader h;
    std::memcpy(&h, at(offset), sizeof(h));
    h.payload_xxh3 = XXH3_64bits(at(offset + sizeof(h)), record_bytes(h.length) - sizeof(h));
    h.header_xxh3 = XXH3_64bits_withSeed(&h, offsetof(RecordHeader, header_xxh3), offset);
    std::memcpy(at(offset), &h, sizeof(h));
  }
  void write() {
    const std::uint64_t end = bytes_.size() - record_bytes(sizeof(EndRecord));
    XXH128_canonical_t whole;
    XXH128_canonicalFromHash(&whole, checksum(end));
    std::memcpy(at(end + sizeof(RecordHeader) + offsetof(EndRecord, xxh3)), &whole, sizeof(whole));
    seal(end);
    std::ofstream(path_, std::ios::binary) << bytes_;
  }

 private:
  // It covers the records before `end`, as the image's version has it.
  XXH128_hash_t checksum(std::uint64_t end) {
    ImageHeader image;
    std::memcpy(&image, at(0), sizeof(image));
    if (image.version < kCheckedByHeaders) return XXH3_128bits(bytes_.data(), end);
    std::string headers = bytes_.substr(0, kPage);
    RecordHeader h;
    for (std::uint64_t record = kPage; record < end; record += record_bytes(h.length)) {
      std::memcpy(&h, at(record), sizeof(h));
      headers.append(at(record), sizeof(h));
    }
    return XXH3_128bits(headers.data(), headers.size());
  }

  fs::path path_;
  std::string bytes_;
};

}  // namespace shadowib
