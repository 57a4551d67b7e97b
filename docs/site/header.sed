# What Doxygen sees of a header. Line numbers stay.
# The comment that begins a header describes the file.
1s,^///.*[^ ]$,& \\file,
# An inline namespace tells forms of a build apart; nobody writes it.
s,^inline namespace .* {$,,
s,^}  // namespace \(TIDEPOOL_DETAIL_NVTX_FORM\|profiler_on\|profiler_off\)$,,
# Neither does anybody write the one of the version.
s,^namespace tidepool::inline v[0-9_]*,namespace tidepool,
# Protected members are for the engine, which derives.
s,^ protected:$, private:,
s,^\( *\)friend \(constexpr \)\{0\,1\}bool operator==(.*) = default;$,& ///< Compares all members.,
