// Reads this process's own descriptors in /proc with raw system calls: no stdio, no opendir, no program heap.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shadowib/base/status.h"

namespace shadowib::descriptors {

// Closes without passing the shim's guard of the libc name.
void raw_close(int fd);

// Numbers of all open descriptors except shadowib's own, ascending.
Status list_descriptors(std::vector<int>* fds);

// readlink("/proc/self/fd/N"), or of any path. Empty on failure.
std::string link_target(const char* path);
std::string descriptor_target(int fd);

// A file of /proc, whole. Returns 0 or an errno.
int read_proc_file(const char* path, std::string* text);
// The numbers that name entries of a directory of /proc: processes, threads, descriptors, ascending. Returns 0 or an
// errno. *through, if asked for, is the descriptor that the directory was read by.
int list_numbers(const char* directory, std::vector<int>* numbers, int* through = nullptr);

// The process and the thread that a path in /proc tells of: "/proc/7/task/9/comm" gives 7 and 9. 0: none.
std::int32_t process_of(std::string_view path);
std::int32_t thread_of(std::string_view path);

// Contents of /proc/self/fdinfo/N.
Status read_fdinfo(int fd, std::string* text);

// Contents of /proc/self/fdinfo of many descriptors.
class DescriptorInfos {
 public:
  Status read(const std::vector<int>& fds);
  std::string_view of(std::size_t i) const {
    return std::string_view(text_).substr(ends_[i], ends_[i + 1] - ends_[i]);
  }

 private:
  std::string text_;
  std::vector<std::size_t> ends_;  // of the text before fds[i]
};

// The text after "name:" and blanks on the first line of that name; false if there is none.
bool info_field(std::string_view info, std::string_view name, std::string_view* value);
std::uint64_t parse_number(std::string_view text, int base);

// A mapping of the kind MAP_SHARED, as a maps file tells it.
struct SharedMapping {
  std::uint64_t start = 0, end = 0, offset = 0, device = 0, inode = 0;
  std::string path;
};
// All of them out of /proc/PID/maps, ascending. Returns 0 or an errno.
int read_shared_mappings(const char* maps, std::vector<SharedMapping>* mappings);

// proc_pid_stat(5): what is behind the name, which may hold anything, counted from 3.
struct ProcessStat {
  std::string name;
  char state = '?';
  std::int32_t parent = 0, group = 0, session = 0, exit_signal = 0;
};
// False if there is none such, or it is hidden.
bool read_process_stat(int pid, ProcessStat* stat);

// The pid namespace of a process, its number in there (the last of NSpid) and its name. False if there is none such.
bool names_of(int pid, std::uint64_t* space, int* inner, std::string* comm);

// Whether two numbers lead to one open file description: 0 same, 1 and 2 different (a total order), -1 if the kernel
// does not tell (kcmp denied by a seccomp filter). Source: kcmp(2).
int compare_descriptions(int a, int b);
inline constexpr int kSameDescription = 0, kLessDescription = 1;
// Likewise for numbers of two processes of this one's pid namespace; -1 also if one of them may not be looked at, or
// has ended, or has no such number.
int compare_descriptions(int pid_a, int a, int pid_b, int b);

}  // namespace shadowib::descriptors
