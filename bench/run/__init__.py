"""`ssd bench run`: the whole system on real prompts, all modes in one run, with what explains the speed."""
