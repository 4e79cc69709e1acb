// Where the images of a checkpoint lie: the hosts of its members, and the store that suits them.
#include "hooks/command/coordinator_drive.h"
#include "hooks/command/room.h"
#include "hooks/job/collection.h"
#include "hooks/store/near_place.h"

namespace shadowib {

// Where images would stay; refused before anything is written if copies or parities could not be kept apart.
Status CheckpointDrive::find_hosts() {
  if (!plan_.is_near() && !options_.choice) return {};
  std::map<std::uint32_t, Fields> rooms;
  for (const auto& member : members_) {
    Fields fields;
    bool found = false;
    SHADOWIB_TRY(get("near/" + std::to_string(member.index), &fields, &found));
    if (!found)
      return Status::of(Code::kVersion, 0,
                        "%.200s has a library of an older shadowib, which cannot keep its image near; use --store "
                        "central",
                        describe(member).c_str());
    hosts_.host_of[member.index] = field_text(fields, "host");
    hosts_.domains[field_text(fields, "host")] = field_text(fields, "domain");
    if (options_.choice) rooms[member.index] = std::move(fields);
  }
  if (options_.choice) SHADOWIB_TRY(choose(rooms));
  return check_hosts(plan_, hosts_);
}

// By what each member tells of its size and its host's room. If none has it, images may turn out smaller than they
// are known to: they are compressed, or by another amount than is recorded.
Status CheckpointDrive::choose(const std::map<std::uint32_t, Fields>& rooms) {
  const StoreChoice& choice = *options_.choice;
  const auto choose_by = [&](double part) {
    StoreQuestion question = describe_room(choice, view_.directory, members_, rooms, hosts_, part);
    question.full = full_;
    considered_ = rank_stores(question);
    return choose_store_of(considered_, &plan_);
  };
  const double part = expected_part(choice.rates, compression_);
  if (const Status plain = choose_by(part); !plain.ok()) {
    const std::vector<StoreOption> considered = considered_;
    const bool is_plain = compression_ == Compression::kNone;
    const Compression smaller = is_plain ? Compression::kLz4 : compression_;
    const double recorded = expected_part(choice.rates, smaller);
    if ((is_plain && !choice.may_compress) || (!is_plain && recorded < 1) ||
        !choose_by(recorded < 1 ? recorded : kUsualPart).ok()) {
      considered_ = considered;
      return plain;
    }
    compression_ = smaller;
  }
  near_place_ = plan_.tier == Tier::kMem ? choice.mem_place : plan_.tier == Tier::kDisk ? choice.disk_place : "";
  return {};
}

// A library that does not know savers does not come to their barriers.
Status CheckpointDrive::judge_savers(Fields* go) {
  if (!is_forked()) return {};
  Collection savers(*view_.exchange, key("save"), indices());
  SHADOWIB_TRY(savers.look());
  for (const auto& member : members_)
    if (savers.missing().contains(member.index))
      return Status::of(
          Code::kVersion, 0,
          "%.200s has a library of an older shadowib, which writes its image while it stands; use --save "
          "stopped",
          describe(member).c_str());
  if (options_.save != SaveWay::kAuto) return {};
  std::map<std::uint32_t, SaverNeed> needs;
  for (const auto& [member, text] : savers.values()) {
    Fields fields;
    SHADOWIB_TRY(view_.decode(below("save/" + std::to_string(member)), text, &fields));
    // Copies and parities of other hosts' images lie here, too, and take as much at most.
    const std::uint64_t images =
        plan_.tier != Tier::kMem ? 0 : field_number(fields, "bytes") * (plan_.is_redundant() ? 2 : 1);
    needs[member] = {field_text(fields, "host"), field_number(fields, "needs") + images, field_number(fields, "free"),
                     field_text(fields, "group")};
  }
  std::string standing;
  for (const std::uint32_t member : members_that_stand(needs))
    standing += (standing.empty() ? "" : ",") + std::to_string(member);
  (*go)["stand"] = standing;
  return {};
}

void CheckpointDrive::remove_near() {
  if (!plan_.is_near()) return;

  (void)remove_near_set(near_place_, view_.job, set_id_).ok();
  if (plan_.is_redundant()) drop_copies(view_.directory, view_.job, near_place_, set_id_);
}

}  // namespace shadowib
