// A far place behind a command: CMD put|get|stat|rm NAME. docs/reference/formats.md has the rules for CMD.
#pragma once

#include <string>
#include <vector>

#include "hooks/store/far_place.h"

namespace shadowib {

class FarCommand : public FarPlace {
 public:
  FarCommand(std::vector<std::string> command, int stall_ms) : command_(std::move(command)), stall_ms_(stall_ms) {}

  Status check() override;
  Status stat(const std::string& name, FarObject* object) override;
  Status put(const std::string& name, std::uint64_t bytes, const PieceSource& source) override;
  Status get(const std::string& name, const PieceSink& sink) override;
  Status remove(const std::string& name) override;

 private:
  Status call(const char* what, const std::string& name, std::uint64_t bytes, const PieceSource& source,
              const PieceSink& sink);

  const std::vector<std::string> command_;
  const int stall_ms_;
};

}  // namespace shadowib
