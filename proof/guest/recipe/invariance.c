/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Put into drivers/cpufreq/cpufreq.c by build-kernel: what a CPU is asked to run at counts as what it runs at. On a server
 * the kernel knows that from two counters (APERF and MPERF), which QEMU's emulated CPU does not have; schedutil
 * would then take a clamp for a share of the current frequency, and any below 80 % would end at the lowest.
 */
static void guest_set_freq_scale(const struct cpumask *cpus, unsigned long freq, unsigned long max)
{
	int cpu;

	for_each_cpu(cpu, cpus)
		WRITE_ONCE(per_cpu(arch_freq_scale, cpu), (freq << SCHED_CAPACITY_SHIFT) / max);
}
#define arch_set_freq_scale guest_set_freq_scale

static int __init guest_is_invariant(void)
{
	static_branch_enable(&arch_scale_freq_key);
	return 0;
}
late_initcall(guest_is_invariant);
