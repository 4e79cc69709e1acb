#include "hooks/agent/gate_board.h"

#include <fcntl.h>
#include <unistd.h>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

// Each value stands there twice, the second time inverted, so that half of one is none.
struct Place {
  GateBoard::Values values, inverted;
};

off_t offset_of(std::uint32_t member) { return static_cast<off_t>(member) * static_cast<off_t>(sizeof(Place)); }

}  // namespace

GateBoard::GateBoard(const std::string& file) {
  UnownedDescriptors unowned;
  const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return;
  fd_ = unowned.own(fd);
  if (fd_ < 0) raw_close(fd);
}

GateBoard::~GateBoard() {
  if (fd_ >= 0) close_owned_descriptor(fd_);
}

void GateBoard::write(std::uint32_t member, const Values& values) {
  Place place{values, {}};
  for (std::size_t i = 0; i < values.size(); ++i) place.inverted[i] = ~values[i];
  // One that is not written is heard of by the exchange.
  [[maybe_unused]] const ssize_t n = ::pwrite(fd_, &place, sizeof(place), offset_of(member));
}

bool GateBoard::read(std::uint32_t member, Values* values) const {
  Place place;
  if (::pread(fd_, &place, sizeof(place), offset_of(member)) != static_cast<ssize_t>(sizeof(place))) return false;
  for (std::size_t i = 0; i < place.values.size(); ++i)
    if (place.values[i] != ~place.inverted[i]) return false;
  *values = place.values;
  return true;
}

}  // namespace shadowib
