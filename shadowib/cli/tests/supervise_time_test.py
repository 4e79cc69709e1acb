"""`shadowib supervise` and the end of a job's time: limits, notices."""
import json
import signal
import sys
import time

from supervise_case import main, ROLES, SAVED, SuperviseCase


class Time(SuperviseCase):
    def test_the_job_is_saved_before_its_time_is_over(self):
        (self.top / "roles").write_text(ROLES)
        process = self.supervise("--interval", "1000", "--until", "60s", command=(sys.executable, "roles", "deaf"))
        self.await_told(process)
        self.assertIn("the job is saved and has ended", self.end(process, SAVED))
        self.assertEqual([(e["event"], e.get("kill")) for e in self.events()], [("started", None), ("checkpoint", True)])
        # The next one goes on. It has time.
        process = self.supervise("--until", "slurm", command=("false",), SLURM_JOB_END_TIME=str(int(time.time()) + 3600))
        self.wait_for("a restart", lambda: "restored 1 process" in process.log.read_text(), process)
        (self.top / "end").touch()
        self.end(process, 0)

    def test_the_next_checkpoint_would_be_after_the_time(self):
        """The end of the first one plans it so. The last one comes all the same, as early as one has taken: 24 s before the end."""
        (self.top / "roles").write_text(ROLES)
        self.remember(16)
        process = self.supervise("--interval", "34", "--until", "66", command=(sys.executable, "roles", "stay"))
        self.assertIn("the job is saved and has ended", self.end(process, SAVED))

    def test_the_time_is_over(self):
        """Nothing can be saved: the job ends all the same, and nothing is started when there is no time for it."""
        process = self.supervise("--until", "16", "--on-event", 'echo "$SHADOWIB_EVENT/$SHADOWIB_EVENT_TEXT" >event',
                                 command=("sh", "-c", ">begun; sleep 1000"))
        self.assertIn("the time is over (--until), and the job has no set", self.end(process, SAVED))
        self.assertEqual((self.top / "event").read_text(), "time_over/the time is over (--until), and the job has no set\n")
        self.wait_for("the end of all", lambda: not self.running())
        process = self.supervise("--until", "30", command=("sh", "-c", "echo >>starts; kill -9 $$"))
        self.assertIn("the time is over (--until); start this command again", self.end(process, SAVED))
        for wrong, why in {"soon": "is no time", "@5": "has passed", "slurm": "SLURM_JOB_END_TIME is not set"}.items():
            self.assertIn(why, self.end(self.supervise("--until", wrong, command=("true",)), 2))

    def remember(self, took_s):
        """As if one checkpoint had taken so long."""
        history = self.dir / "history" / "demo"
        history.mkdir(parents=True, exist_ok=True)
        event = {"time": "2026-01-01T00:00:00.000000Z", "event": "checkpoint", "host": "other", "took_ms": took_s * 1000}
        (history / "other.1.jsonl").write_text(json.dumps(event) + "\n")

    def supervise_noticed(self, notice, *options, **variables):
        """A member that stays. What is put into the file `left` is the notice."""
        (self.top / "roles").write_text(ROLES)
        process = self.supervise("--interval", "1000", "--notice", notice, *options, command=(sys.executable, "roles", "stay"), **variables)
        self.wait_for("a member", lambda: (self.top / "stays").exists(), process)
        return process

    def notices(self):
        """An answer that stays as it is puts the end off again and again: each is a notice."""
        return {(e["fits"], e.get("left_s")) for e in self.events() if e["event"] == "notice"}

    def await_answers(self, process, count):
        asked = self.top / "asked"
        before = len(asked.read_text()) if asked.exists() else 0
        self.wait_for("answers", lambda: asked.exists() and len(asked.read_text()) >= before + count, process)

    def test_a_notice_that_leaves_time(self):
        """The job goes on as long as a save of 1000 s has time, then it is saved and ends. Words that are no numbers change nothing."""
        self.remember(1000)
        ask = "printf . >>asked; echo complaint >&2; cat left 2>/dev/null"
        process = self.supervise_noticed(ask, "--on-event", 'echo "$SHADOWIB_EVENT" >>events')
        self.await_answers(process, 1)
        (self.top / "left").write_text("2000\n")
        self.wait_for("the notice", self.notices, process)
        self.assertEqual(self.notices(), {(True, 2000)})
        (self.top / "left").write_text("soon\n")
        self.wait_for("a complaint", lambda: "'soon' is no number of seconds" in process.log.read_text(), process)
        (self.top / "left").unlink()
        self.wait_for("the withdrawal", lambda: "the notice is withdrawn" in process.log.read_text(), process)
        self.assertEqual(self.checkpoints(), 1, "only the remembered one")
        (self.top / "left").write_text("1501\n")  # 1.5 times as long: one second passes, or has passed
        said = self.end(process, SAVED)
        self.assertIn("notice: the place goes away in 1501.0 s; the job is saved before", said)
        self.assertIn("the job is saved and has ended", said)
        self.assertEqual(self.notices(), {(True, 2000), (True, 1501)})
        self.assertEqual([e.get("kill") for e in self.events() if e["event"] == "checkpoint"], [None, True])
        self.assertEqual(set((self.top / "events").read_text().split()), {"notice", "saved"})

    def test_a_notice_that_leaves_too_little_time(self):
        """Nothing is begun, the good set stays, and the next start goes on from it."""
        self.remember(1000)
        ask = "end=$(cat end_s 2>/dev/null) || exit; now=$(date +%s); echo $((end > now ? end - now : 0))"
        process = self.supervise_noticed(ask)
        self.command("checkpoint", "demo")
        (self.top / "new").write_text(str(int(time.time()) + 8))
        (self.top / "new").rename(self.top / "end_s")
        said = self.end(process, SAVED)
        self.assertRegex(said, r"notice: the place goes away in [0-8].0 s, and a save is to have 15\d\d.\d s: none is begun; "
                               r"[0-9.]+ minutes since the newest set will be lost")
        self.assertIn("the time is over (--notice): ", said)
        [(fits, left_s)] = self.notices()
        self.assertTrue(not fits and left_s <= 8)
        self.assertEqual(self.checkpoints(), 2, "the remembered one, and the one by hand")
        self.assertEqual([path.name for path in (self.dir / "sets").glob("demo.*")], ["demo.0001"])
        self.assertIn("too late for it", self.command("history", "demo").stdout)
        (self.top / "end_s").unlink()
        process = self.supervise("--notice", ask, command=("false",))
        self.wait_for("a restart", lambda: "restored 1 process" in process.log.read_text(), process)
        (self.top / "end").touch()
        self.end(process, 0)

    def test_a_notice_by_a_signal(self):
        """It does not come to the job. Where nobody knows how long a save takes, or what is left, it begins at once."""
        for notice, sent in (("USR1@1h", signal.SIGUSR1), ("SIGXCPU", signal.SIGXCPU)):
            process = self.supervise_noticed(notice)
            if sent == signal.SIGXCPU:
                self.wait_for("a restart", lambda process=process: "restored 1 process" in process.log.read_text(), process)
            process.send_signal(sent)
            self.assertIn("the job is saved and has ended", self.end(process, SAVED))
        self.assertEqual(self.notices(), {(True, 3600), (True, None)})
        for wrong in ("KILL", "USR1@soon"):
            self.assertIn("--notice", self.end(self.supervise("--notice", wrong, command=("true",)), 2))


if __name__ == "__main__":
    main()
