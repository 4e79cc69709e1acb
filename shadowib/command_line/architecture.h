// Which processors a program is for.
#pragma once

#include <string>

namespace command_line {

// The name of the architecture in a program's ELF header: "x86_64", "aarch64". Empty: the file is no program.
std::string architecture_of(const std::string& program);
// The present process's.
std::string this_architecture();
// "i686", "aarch64" and the others: architectures that portable programs are compiled for.
bool is_architecture(const std::string& name);

}  // namespace command_line
