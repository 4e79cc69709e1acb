// The system's services for TLS, without the program's locks and heap: random bytes, files that hold secrets. And
// what mbed TLS calls in place of libc's functions that take such a lock, which CMakeLists.txt here leads to
// tls_platform.cc.
#pragma once

#include <cstddef>
#include <string>

namespace shadowib {

// Before a session begins: what the processor can do, which after a restart may be less.
void tls_note_processor();

// Random bytes of the kernel, as mbed TLS asks for them: 0 or an error of its own.
int tls_random(void*, unsigned char* to, std::size_t bytes);

// A whole file, with the zero at its end that PEM's parser asks for, in memory that is in no image.
class SecretFile {
 public:
  SecretFile() = default;
  ~SecretFile();
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;

  // 0 or an errno; EINVAL if it is no file, or has more than 16 MiB. Once.
  int read(const std::string& path);
  const unsigned char* bytes() const { return bytes_; }
  std::size_t size() const { return size_ + 1; }  // with the zero

 private:
  unsigned char* bytes_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace shadowib
