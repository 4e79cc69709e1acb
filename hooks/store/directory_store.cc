#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "hooks/job/job_directory.h"
#include "hooks/store/store.h"

namespace shadowib {
namespace {

std::string absolute(const std::string& path) {
  std::error_code error;
  return std::filesystem::absolute(path, error).lexically_normal();
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

class DirectoryStore : public Store {
 public:
  // `sets`: the directory of the sets, absolute.
  DirectoryStore(std::string sets, Files& files) : sets_(std::move(sets)), files_(files) {}

  Status stage(const std::string& job, std::string* staging, std::uint32_t* number) override {
    if (!valid_job_name(job))
      return Status::of(Code::kUsage, EINVAL, "'%.100s' is no job name: %s", job.c_str(), kJobNameRule);
    SHADOWIB_TRY(ensure_directory(sets_, files_));
    std::vector<StoredSet> present;
    SHADOWIB_TRY(list(&present));
    *number = 1;
    for (const StoredSet& set : present)
      if (set.job == job) *number = std::max(*number, set.number + 1);
    *staging = sets_ + "/" + staging_name(job, *number);
    const int error = files_.make_directory(*staging);
    return error == 0 ? Status() : file_error(error, "create directory", *staging);
  }

  Status write(const std::string& staging, const std::string& piece, std::string_view content) override {
    return write_new_file(staging + "/" + piece, content, files_);
  }

  Status sync(const std::string& staging, const std::string& piece, std::uint64_t bytes) override {
    const std::string path = staging + "/" + piece;
    std::uint64_t present = 0;
    const int error = files_.sync(path, &present);
    if (error != 0) return file_error(error, error == ENOENT ? "find image" : "sync", path);
    if (present == bytes) return {};
    return Status::of(Code::kIo, 0, "image %.200s has %llu bytes, its process reported %llu", path.c_str(),
                      static_cast<unsigned long long>(present), static_cast<unsigned long long>(bytes));
  }

  Status commit(const std::string& staging, const std::string& job, std::uint32_t number,
                std::string* set_path) override {
    set_path->clear();
    const std::string path = sets_ + "/" + set_name(job, number);
    if (const int error = files_.sync(staging); error != 0) return file_error(error, "sync", staging);
    // A file server that began anew in between may say that it has not done what it did.
    if (const int error = files_.rename_if_absent(staging, path); error != 0 && !is_moved(staging, path))
      return error == EEXIST || error == ENOTEMPTY
                 ? Status::of(Code::kBusy, error, "set %.200s exists already", path.c_str())
                 : file_error(error, "commit", path);
    const int error = files_.sync(sets_);
    if (error != 0) {
      // Not known to be on disk: take it back rather than leave a set that a power failure may undo.
      if (files_.rename(path, staging) != 0) *set_path = path;
      return file_error(error, "sync", sets_);
    }
    *set_path = path;
    return {};
  }

  Status discard(const std::string& staging) override {
    std::string job;
    std::uint32_t number = 0;
    if (!parse_hidden_name(name_of(staging), &job, &number))
      return Status::of(Code::kUsage, EINVAL, "%.200s is not a staging directory", staging.c_str());
    // Members that have not yet heard of the end still make files in it: as many as they have pieces, then no more.
    constexpr int kTries = 64;
    int error = ENOTEMPTY;
    for (int i = 0; i < kTries && error == ENOTEMPTY; ++i) error = files_.remove_all(staging);
    return error == 0 ? Status() : file_error(error, "remove", staging);
  }

  Status list(std::vector<StoredSet>* sets) override {
    sets->clear();
    std::vector<std::string> names;
    const int error = files_.list(sets_, &names);
    if (error == ENOENT) return {};
    if (error != 0) return file_error(error, "read directory", sets_);
    for (const std::string& name : names) {
      StoredSet set{.path = sets_ + "/" + name};
      set.committed = parse_set_name(name, &set.job, &set.number);
      if (set.committed || parse_hidden_name(name, &set.job, &set.number)) sets->push_back(std::move(set));
    }
    return {};
  }

  Status pieces(const std::string& set_path, std::vector<std::string>* names) override {
    const int error = files_.list(set_path, names);
    return error == 0 ? Status() : file_error(error, "read directory", set_path);
  }

  Status read(const std::string& set_path, const std::string& piece, std::string* content) override {
    return read_file(set_path + "/" + piece, content, files_);
  }

  // The new content has a hidden name beside the sets until it is whole: a set has no file that does not belong to
  // it.
  Status replace(const std::string& set_path, const std::string& piece, std::string_view content) override {
    std::string job;
    std::uint32_t number = 0;
    if (!parse_set_name(name_of(set_path), &job, &number))
      return Status::of(Code::kUsage, EINVAL, "%.200s is no set", set_path.c_str());
    const std::string temporary = sets_ + "/" + staging_name(job, number);
    SHADOWIB_TRY(write_new_file(temporary, content, files_));
    const std::string path = set_path + "/" + piece;
    if (const int error = files_.rename(temporary, path); error != 0) {
      (void)files_.remove_all(temporary);
      return file_error(error, "write", path);
    }
    const int error = files_.sync(set_path);
    return error == 0 ? Status() : file_error(error, "sync", set_path);
  }

  Status open(const std::string& set_path, const std::string& piece, int* fd) override {
    const std::string path = set_path + "/" + piece;
    const int error = files_.open(path, fd);
    return error == 0 ? Status() : file_error(error, "open", path);
  }

  Status remove(const std::string& set_path) override {
    const std::string hidden = sets_ + "/" + removing_name(name_of(set_path));
    if (const int error = files_.rename(set_path, hidden); error != 0) return file_error(error, "remove", set_path);
    return discard(hidden);
  }

 private:
  bool is_moved(const std::string& from, const std::string& to) {
    std::vector<std::string> names;
    return files_.list(from, &names) == ENOENT && files_.list(to, &names) == 0;
  }

  const std::string sets_;
  Files& files_;
};

}  // namespace

std::unique_ptr<Store> open_directory_store(const std::string& directory, Files& files) {
  return std::make_unique<DirectoryStore>(sets_path(absolute(directory)), files);
}

std::unique_ptr<Store> open_store_of(const std::string& set_path, Files& files) {
  std::filesystem::path path = absolute(set_path);
  if (!path.has_filename()) path = path.parent_path();
  return std::make_unique<DirectoryStore>(path.parent_path(), files);
}

}  // namespace shadowib
