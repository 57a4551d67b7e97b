/// Compares a gradient with finite differences of the loss.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "../kernels/kernels.hpp"

namespace moe {

/// Scales to length 1; returns the length before.
inline double normalise(std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) sum += x * x;
  const double length = std::sqrt(sum);
  for (double& x : v) x /= length > 0 ? length : 1;
  return length;
}

/// Central difference of the loss when weights move from `start` along `direction`. `loss_at`
/// returns the loss with the weights it is given.
template <class LossAt>
double slope(const std::vector<float>& start, const std::vector<double>& direction, double reach,
             const LossAt& loss_at) {
  double side[2];
  for (const int sign : {-1, 1}) {
    std::vector<float> moved = start;
    for (std::size_t i = 0; i < moved.size(); ++i) {
      moved[i] = static_cast<float>(start[i] + sign * reach * direction[i]);
    }
    side[sign > 0] = loss_at(moved);
  }
  return (side[1] - side[0]) / (2 * reach);
}

/// Moves a tensor of weights along its gradient and along a random direction: the loss must change
/// accordingly. Prints a line; returns whether both slopes agree.
template <class LossAt>
bool check_slopes(const std::string& name, const std::vector<float>& start,
                  const std::vector<float>& gradient, const LossAt& loss_at) {
  std::vector<double> along(gradient.begin(), gradient.end()), random(along.size());
  const double length = normalise(along);
  for (std::size_t i = 0; i < random.size(); ++i) {
    random[i] = static_cast<double>(mix(99 + i) >> 11) * 0x1p-52 - 1;
  }
  normalise(random);
  double expected = 0;
  for (std::size_t i = 0; i < random.size(); ++i) expected += random[i] * along[i] * length;
  const double downhill = slope(start, along, 4e-3, loss_at);
  const double found = slope(start, random, 2e-2, loss_at);

  const auto agree = [](double a, double b) {
    return std::abs(a - b) < 5e-5 + 0.005 * std::abs(a);
  };
  const bool good = length > 0 && agree(length, downhill) && agree(expected, found);
  std::printf("%-4s %-18s |gradient| %.6f, measured %.6f; random direction %+.6f, measured %+.6f\n",
              good ? "ok" : "BAD", name.c_str(), length, downhill, expected, found);
  return good;
}

/// Ends a program of checks: prints the verdict, and returns the exit status.
inline int verdict(int bad) {
  std::printf("%s\n", bad == 0 ? "every gradient agrees" : "some gradients are wrong");
  return bad == 0 ? 0 : 1;
}

}  // namespace moe
