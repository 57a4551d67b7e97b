# What Doxygen sees of a header. Line numbers stay.
# The comment that begins a header describes the file.
1s,^///.*[^ ]$,& \\file,
# Protected members are for the engine, which derives.
s,^ protected:$, private:,
s,^\( *\)friend \(constexpr \)\{0\,1\}bool operator==(.*) = default;$,& ///< Compares all members.,
