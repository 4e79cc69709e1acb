// A far place that is a directory of another file system. Objects appear whole, by sync and rename.
#pragma once

#include <string>

#include "hooks/store/far_place.h"

namespace shadowib {

class FarDirectory : public FarPlace {
 public:
  explicit FarDirectory(std::string top) : top_(std::move(top)) {}

  // The directory is not made: an archive that is not mounted must not become a directory of this machine.
  Status check() override;
  Status stat(const std::string& name, FarObject* object) override;
  Status put(const std::string& name, std::uint64_t bytes, const PieceSource& source) override;
  Status get(const std::string& name, const PieceSink& sink) override;
  Status remove(const std::string& name) override;

 private:
  const std::string top_;
};

}  // namespace shadowib
