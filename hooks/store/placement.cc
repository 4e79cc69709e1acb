#include "hooks/store/placement.h"

#include <stdexcept>

#include "hooks/store/hex_hash.h"
#include "shadowib/base/json_value.h"

namespace shadowib {
namespace {

Json to_json(const Piece& piece) { return {{"file", piece.file}, {"bytes", piece.bytes}, {"xxh3", piece.xxh3}}; }

Json to_json(const ParityGroup& group) {
  Json json{{"losses", group.losses}, {"hosts", Json::array()}};
  for (const ParityGroup::Host& host : group.hosts) {
    Json images = Json::array();
    for (const Piece& image : host.images) images.push_back(to_json(image));
    json["hosts"].push_back(
        {{"id", host.host.id}, {"name", host.host.name}, {"images", images}, {"parity", to_json(host.parity)}});
  }
  return json;
}

void from_json(const Json& json, Piece* piece) {
  json.at("file").get_to(piece->file);
  json.at("bytes").get_to(piece->bytes);
  json.at("xxh3").get_to(piece->xxh3);
}

void from_json(const Json& json, ParityGroup* group) {
  json.at("losses").get_to(group->losses);
  for (const Json& host : json.at("hosts")) {
    ParityGroup::Host& back = group->hosts.emplace_back();
    back.host = {host.at("id").get<std::string>(), host.at("name").get<std::string>()};
    for (const Json& image : host.at("images")) from_json(image, &back.images.emplace_back());
    from_json(host.at("parity"), &back.parity);
  }
  if (!group->settle().ok()) throw std::domain_error("a group of hosts is none");
}

Json to_json(const SetPlacement& placement) {
  Json json{{"store", placement.store.text()}, {"place", placement.place}, {"pieces", Json::array()}};
  if (!placement.groups.empty()) json["groups"] = Json::array();
  for (const ParityGroup& group : placement.groups) json["groups"].push_back(to_json(group));
  for (const PlacedPiece& piece : placement.pieces) {
    Json hosts = Json::array();
    for (const PieceHost& host : piece.hosts) hosts.push_back({{"id", host.id}, {"name", host.name}});
    json["pieces"].push_back({{"file", piece.file}, {"hosts", hosts}});
  }
  return json;
}

void from_json(const Json& json, SetPlacement* placement) {
  const std::string store = json.at("store").get<std::string>();
  if (const Status status = parse_store(store, &placement->store); !status.ok() || !placement->store.is_near())
    throw std::domain_error("its store '" + store + "' is unknown here");
  json.at("place").get_to(placement->place);
  if (placement->place.empty() || placement->place[0] != '/') throw std::domain_error("its place is no path");
  placement->pieces.clear();
  placement->groups.clear();
  if (json.contains("groups"))
    for (const Json& group : json.at("groups")) from_json(group, &placement->groups.emplace_back());
  for (const Json& piece : json.at("pieces")) {
    PlacedPiece& back = placement->pieces.emplace_back();
    piece.at("file").get_to(back.file);
    for (const Json& host : piece.at("hosts"))
      back.hosts.push_back({host.at("id").get<std::string>(), host.at("name").get<std::string>()});
  }
}

}  // namespace

const PlacedPiece* SetPlacement::find(std::string_view file) const {
  for (const PlacedPiece& piece : pieces)
    if (piece.file == file) return &piece;
  return nullptr;
}

const ParityGroup* SetPlacement::group_of(std::string_view file) const {
  for (const ParityGroup& group : groups)
    if (group.row_of(file) >= 0) return &group;
  return nullptr;
}

std::string encode_placement(const SetPlacement& placement) {
  const Json json = to_json(placement);
  return Json({{"format", placement.groups.empty() ? 1 : kPlacementFormat},
               {"placement", json},
               {"xxh3", hex_hash(json.dump())}})
             .dump(2) +
         "\n";
}

Status decode_placement(std::string_view json, const std::string& name, SetPlacement* placement) {
  try {
    Json parsed;
    if (std::string why; !Json::parse(json, &parsed, &why)) throw std::runtime_error(why);
    const int format = parsed.at("format").get<int>();
    if (format < 1 || format > kPlacementFormat)
      return Status::of(Code::kVersion, 0, "set %.200s has placement format %d, this shadowib reads %d", name.c_str(),
                        format, kPlacementFormat);
    if (hex_hash(parsed.at("placement").dump()) != parsed.at("xxh3").get<std::string>())
      throw std::runtime_error("its checksum does not agree");
    from_json(parsed.at("placement"), placement);
  } catch (const std::exception& error) {
    return Status::of(Code::kCorrupt, 0, "set %.150s: %s: %.100s; the set was altered or torn", name.c_str(),
                      kPlacementFile, error.what());
  }
  return {};
}

}  // namespace shadowib
