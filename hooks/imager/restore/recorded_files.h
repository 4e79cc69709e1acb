// Opening the files a process of the image cannot do without.
#pragma once

#include <string>

#include "hooks/imager/restore/image_file.h"

namespace shadowib {

// "cannot WHAT OBJECT: ERRNO'S TEXT", with the code that errno stands for.
Status file_failure(const char* what, const char* object);

// The program's file, for /proc/self/exe. A program removed before the checkpoint is replaced by what has its name
// now; *fd is -1 if that cannot be executed.
Status open_program(const LoadedImage& image, int* fd);

// The file of a shared mapping. kRefused if its size is another now.
Status open_shared_file(const MappingRecord& m, const std::string& path, int* fd);

}  // namespace shadowib
