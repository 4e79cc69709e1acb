#include <gtest/gtest.h>

#include <stdexcept>

#include "curves.h"
#include "expression.h"
#include "factoring.h"
#include "number.h"

namespace {

using factoring::evaluate;
using factoring::Number;

std::string wrong(const std::string& text) {
  try {
    return "no error, but " + evaluate(text).get_str();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
}

TEST(Expression, ReadsWhatGmpEcmReads) {
  EXPECT_EQ(evaluate("1 000 000 007"), 1000000007);
  EXPECT_EQ(evaluate("2^64+1"), mpz_class("18446744073709551617"));
  EXPECT_EQ(evaluate("(10^31-1)/9"), mpz_class(std::string(31, '1')));
  EXPECT_EQ(evaluate("2^3^2 - -1"), 513);
  EXPECT_EQ(evaluate("[5!+{1}].2 // and a comment"), 242);
  EXPECT_EQ(evaluate("15!3"), 15 * 12 * 9 * 6 * 3);
  EXPECT_EQ(evaluate("11#"), 2310);
  EXPECT_EQ(evaluate("-7%5*2"), 6);
}

TEST(Expression, SaysWhatIsWrong) {
  EXPECT_EQ(wrong(""), "a number was expected at the end");
  EXPECT_EQ(wrong("2^^3"), "a number was expected at character 3");
  EXPECT_EQ(wrong("(2+3"), "a ')' was expected at the end");
  EXPECT_EQ(wrong("12x"), "an operator was expected at character 3");
  EXPECT_EQ(wrong("7/2"), "a division leaves a remainder");
  EXPECT_EQ(wrong("7/(3-3)"), "it divides by zero");
  EXPECT_EQ(wrong("2^(1-2)"), "an exponent is negative, or too large");
  EXPECT_EQ(wrong("9!0"), "a step above 0 was expected at the end");
  for (const char* text : {"9^9^9^9", "999999999!", "99999999#", "(10^900000)*(10^900000)"})
    EXPECT_EQ(wrong(text), "it has more than a million digits") << text;
  EXPECT_EQ(wrong(std::string(100000, '(')), "it has too many groups in groups");
  EXPECT_EQ(wrong(std::string(100000, '-') + "x"), "a number was expected at character 100001");
}

TEST(Numbers, SmallFactorsGoAtOnce) {
  const Number number("n", evaluate("2^10 * 3 * 999983^2 * 1000003 * 1000033"));
  EXPECT_TRUE(number.done());
  EXPECT_EQ(number.factors(), "2^10 * 3 * 999983^2 * 1000003 * 1000033");
  EXPECT_EQ(Number("p", evaluate("2^127-1")).factors(), "170141183460469231731687303715884105727");
}

TEST(Numbers, PowersAreFoundWithoutCurves) {
  const mpz_class p = evaluate("10^18+9"), q = evaluate("10^18+3");
  EXPECT_EQ(Number("p^3", p * p * p).factors(), "1000000000000000009^3");
  const Number both("(pq)^2", p * p * q * q);
  EXPECT_EQ(both.factors(), "[c37 " + mpz_class(p * q).get_str() + "] * [c37 " + mpz_class(p * q).get_str() + "]");
}

TEST(Numbers, SplitsAreCountedAndOrdered) {
  const mpz_class p = evaluate("10^18+3"), q = evaluate("10^18+9"), r = evaluate("10^24+7");
  Number number("n", p * q * r);
  EXPECT_EQ(number.composites().size(), 1u);
  EXPECT_FALSE(number.splits_by(1));
  EXPECT_FALSE(number.split(p * q * r));  // all of it: no help
  EXPECT_EQ(number.splits(), 0u);
  EXPECT_TRUE(number.split(r));
  EXPECT_FALSE(number.split(r));     // known
  EXPECT_TRUE(number.split(p * r));  // beside a known one
  EXPECT_EQ(number.splits(), 2u);
  EXPECT_TRUE(number.done());
  EXPECT_EQ(number.factors(), p.get_str() + " * " + q.get_str() + " * " + r.get_str());
}

TEST(Curves, ARunDependsOnItsNameAlone) {
  const factoring::Level level = factoring::table().front();
  EXPECT_EQ(factoring::runs(level, true), level.curves + 4);
  const factoring::Curve minus = make_curve(level, true, 0, 0, 0, 1), plus = make_curve(level, true, 0, 0, 3, 1),
                         first = make_curve(level, true, 0, 0, 4, 1), other = make_curve(level, true, 1, 0, 4, 1);
  EXPECT_EQ(minus.method, factoring::Method::kMinus);
  EXPECT_EQ(minus.b1, 10 * level.b1);
  EXPECT_EQ(plus.method, factoring::Method::kPlus);
  EXPECT_EQ(first.method, factoring::Method::kEcm);
  EXPECT_EQ(first.start, make_curve(level, true, 0, 0, 4, 1).start);
  EXPECT_NE(first.start, other.start);
}

TEST(Curves, AnEngineFindsTheSameAgain) {
  // P-1 = 2^3 * 3^3 * 5 * 67 * 2677: one run of P-1 with such a bound finds P.
  const mpz_class p = 193707721, n = evaluate("2^67-1");
  factoring::Engine engine;
  const factoring::Curve minus{0, 0, 0, factoring::Method::kMinus, 3000, 3};
  EXPECT_EQ(engine.run(n, minus, nullptr), p);
  // The engine keeps nothing of a run that changes the next one.
  const mpz_class q = evaluate("10^12+39"), r = evaluate("10^30+57");
  mpz_class found;
  for (std::uint32_t index = 0; index < 200 && found <= 1; ++index) {
    const factoring::Curve curve = make_curve(factoring::Level{15, 2000, 200}, false, 0, 0, index, 1);
    found = engine.run(q * r, curve, nullptr);
    EXPECT_EQ(factoring::Engine().run(q * r, curve, nullptr), found) << index;
  }
  EXPECT_EQ(found, q);
}

TEST(Factoring, AStaleResultIsDoneAgain) {
  const mpz_class p = evaluate("10^18+3"), q = evaluate("10^18+9"), r = evaluate("10^24+7");
  factoring::Plan plan;
  plan.quiet = true;
  factoring::Factoring farm(plan);
  factoring::State state{{Number("n", p * q * r), Number("m", q * r)}};
  const factoring::Curve curve = *farm.next(state);
  const mw::Result fine{std::nullopt};
  using Kind = mw::Action<factoring::Curve>::Kind;
  const factoring::Found none{"1", 0, false}, finds_r{r.get_str(), 0, false};
  EXPECT_EQ(farm.check(curve, none, state, fine).kind, Kind::kDone);
  EXPECT_EQ(farm.check(curve, finds_r, state, fine).kind, Kind::kUpdate);
  farm.update(state, curve, finds_r);
  EXPECT_EQ(farm.check(curve, finds_r, state, fine).kind, Kind::kRedo) << "its worker had the old number";
  EXPECT_EQ(farm.check(curve, none, state, fine).kind, Kind::kDone) << "and it counts for what is left";
  const factoring::Found whole{mpz_class(p * q).get_str(), 1, false};
  EXPECT_EQ(farm.check(curve, whole, state, fine).kind, Kind::kDone) << "newest, and no help";
  const factoring::Found aborted{"1", 1, true};
  EXPECT_EQ(farm.check(curve, aborted, state, fine).kind, Kind::kRedo);
}

TEST(Factoring, LevelsFollowTheTable) {
  factoring::Plan plan;
  plan.quiet = true;
  plan.levels.resize(2);
  factoring::Factoring farm(plan);
  const mpz_class hard = evaluate("(10^30+57)*(10^40+121)");
  const factoring::State state{{Number("a", hard), Number("prime", evaluate("10^30+57")), Number("b", hard)}};
  std::vector<unsigned> seen;
  for (std::optional<factoring::Curve> curve; (curve = farm.next(state));) {
    if (curve->index != 0) continue;
    seen.push_back(curve->level * 10 + curve->number);
  }
  EXPECT_EQ(seen, (std::vector<unsigned>{0, 2, 10, 12}));
}

}  // namespace
