// Whether this processor can run what was running on the recorded one.
#pragma once

#include "hooks/imager/restore/image_memory.h"

namespace shadowib {

// Programs and libraries chose their code by the features they found. kRefused names the first that is missing here.
// What has to be changed in the memory of the image behind `fd` for this processor is added to *patches.
Status fit_to_processor(const LoadedImage& image, int fd, std::vector<MemoryPatch>* patches);

}  // namespace shadowib
