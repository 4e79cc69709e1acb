// Whether this processor can run what was running on the recorded one.
#pragma once

#include "hooks/imager/restore/image_memory.h"

namespace shadowib {

// Programs and libraries chose their code by the features they found. kRefused names the first that is missing here.
// Adds to *patches all changes that the memory of the image behind `fd` needs for this processor.
Status fit_to_processor(const LoadedImage& image, int fd, std::vector<MemoryPatch>* patches);

}  // namespace shadowib
