// A file system in memory that forgets, at a power failure, whatever was not synced. For tests of P3.
//
// As POSIX allows: fsync of a file keeps its content, not its name; fsync of a directory keeps the names in it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hooks/store/files.h"

namespace shadowib {

class ForgetfulFiles : public Files {
 public:
  // Which changes of names survive a power failure without a sync. Contents never do: such a file is empty.
  enum class Names { kForgotten, kKept };

  ForgetfulFiles();

  int make_directory(const std::string& path) override;
  int check_directory(const std::string& path) override;
  int write_new(const std::string& path, std::string_view content) override;
  int read(const std::string& path, std::string* content) override;
  int open(const std::string& path, int* fd) override;  // ENOTSUP
  int sync(const std::string& path, std::uint64_t* bytes) override;
  int rename(const std::string& from, const std::string& to) override;
  int rename_if_absent(const std::string& from, const std::string& to) override;
  int remove_all(const std::string& path) override;
  int list(const std::string& path, std::vector<std::string>* names) override;

  // Every change after the first `changes` fails with EIO, as if the machine had stopped there.
  void stop_after(int changes) { left_ = changes; }
  void lose_power(Names names);

 private:
  struct Node {
    bool directory = false;
    std::string content, kept_content;
    std::map<std::string, std::shared_ptr<Node>> names, kept_names;
  };
  using NodePointer = std::shared_ptr<Node>;

  NodePointer find(const std::string& path) const;
  NodePointer parent_of(const std::string& path, std::string* name) const;
  int add(const std::string& path, NodePointer node);
  bool may_change() { return left_ < 0 || left_-- > 0; }
  static void forget(Node& node, Names names);

  NodePointer root_;
  int left_ = -1;
};

}  // namespace shadowib
