// Whether this processor can run what was running on the recorded one.
#pragma once

#include "hooks/imager/restore/image_file.h"

namespace shadowib {

// Programs and libraries chose their code by the features they found. kRefused names the first that is missing here.
Status check_processor(const LoadedImage& image);

}  // namespace shadowib
